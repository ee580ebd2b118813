#include "proto/exported/marked_run.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/exported/files.h"
#include "proto/exported/index_json.h"
#include "proto/exported/layout.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

absl::StatusOr<std::vector<uint8_t>> ReadMarker(const std::filesystem::path& directory) {
  auto marker = ReadFile(directory / kExportMarker);
  if (marker.ok()) return marker;
  return MakeError(
      absl::StatusCode::kFailedPrecondition,
      absl::StrCat(directory.string(), ": no exported run that was written to its end: ", marker.status().message()),
      {.reason = Reason::kNotCommitted, .field = kExportMarker});
}

absl::StatusOr<ExportMarker> ParseMarker(const std::filesystem::path& directory, absl::string_view text) {
  const auto marker = ExportMarker::FromText(text);
  if (marker) return *marker;
  const std::string path = (directory / kExportMarker).string();
  if (!IsFirstVersionsMarker(text)) return Damaged(absl::StrCat(path, ": does not name an index and its CRC32C"));
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat(path, ": version: 1, this reads exported runs of later ones"),
                   {.reason = Reason::kVersionMismatch, .field = "version"});
}

}  // namespace

absl::StatusOr<MarkedRun> ReadMarkedRun(const std::filesystem::path& directory) {
  auto text = ReadMarker(directory);
  while (text.ok()) {
    const auto marker = ParseMarker(directory, AsText(*text));
    if (!marker.ok()) return marker.status();
    const std::filesystem::path path = directory / IndexFileName(marker->index);
    const auto index = ReadFile(path);
    if (index.ok() && Crc32c(*index) == marker->crc32c) {
      auto run = ExportedIndexFromJson(AsText(*index));
      if (!run.ok()) return run.status();
      return MarkedRun{marker->index, *std::move(run)};
    }
    // So many exports may have ended between the two reads that the index is gone; then the marker names another one.
    auto now = ReadMarker(directory);
    if (now.ok() && *now == *text) {
      return Damaged(index.ok() ? absl::StrCat(path.string(), ": does not fit its CRC32C in ", kExportMarker)
                                : std::string(index.status().message()));
    }
    text = std::move(now);
  }
  return text.status();
}

absl::Status Damaged(absl::string_view what, const std::string& sample) {
  return MakeError(absl::StatusCode::kDataLoss, what, {.reason = Reason::kChecksum, .sample = sample});
}

}  // namespace wire
}  // namespace routing_replay
