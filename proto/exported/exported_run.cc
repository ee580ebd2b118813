#include "proto/exported/exported_run.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/exported/files.h"
#include "proto/exported/index_json.h"
#include "proto/wire/payload/npy.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
namespace {

constexpr char kIndex[] = "index.json", kMarker[] = "DONE";

absl::Span<const uint8_t> AsBytes(absl::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

absl::string_view AsText(absl::Span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

absl::Status Invalid(const ExportedSample& sample, Reason reason, absl::string_view field, absl::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat(field, ": ", what),
                   {.reason = reason, .field = std::string(field), .sample = sample.sample});
}

absl::Status Damaged(absl::string_view what, const std::string& sample = "") {
  return MakeError(absl::StatusCode::kDataLoss, what, {.reason = Reason::kChecksum, .sample = sample});
}

// What the marker says of the index.
std::string MarkerOf(absl::Span<const uint8_t> index) { return absl::StrFormat("%08x\n", Crc32c(index)); }

}  // namespace

RunExporter::RunExporter(std::filesystem::path directory, ExportedRun run)
    : directory_(std::move(directory)), run_(std::move(run)) {}

absl::StatusOr<std::unique_ptr<RunExporter>> RunExporter::Create(const std::filesystem::path& directory,
                                                                 std::string run, Producer producer,
                                                                 Geometry geometry) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const bool empty = !error && std::filesystem::is_empty(directory, error);
  if (error) return absl::InternalError(absl::StrCat(directory.string(), ": ", error.message()));
  if (!empty) return absl::AlreadyExistsError(absl::StrCat(directory.string(), ": is not empty"));
  return std::unique_ptr<RunExporter>(new RunExporter(
      directory, {.run = std::move(run), .producer = producer, .geometry = std::move(geometry), .samples = {}}));
}

absl::Status RunExporter::Add(ExportedSample sample, absl::Span<const uint8_t> ids) {
  if (absl::Status status = CheckId(sample.sample, "sample"); !status.ok()) return status;
  if (sample.num_tokens < 1) return Invalid(sample, Reason::kField, "num_tokens", "is below 1");
  if (absl::Status status = CheckNormal(sample.unrecorded, {0, sample.num_tokens - 1}); !status.ok()) return status;
  if (names_.count(sample.sample) != 0) return Invalid(sample, Reason::kField, "sample", "is there already");
  const Geometry& geometry = run_.geometry;
  const int64_t rows = sample.recorded_rows(), layers = geometry.num_moe_layers(), top_k = geometry.max_top_k();
  const int64_t id_bytes = geometry.max_id_bytes(), given = static_cast<int64_t>(ids.size());
  if (given % id_bytes != 0 || geometry.array_ids(rows) != given / id_bytes) {
    return Invalid(sample, Reason::kLength, "ids",
                   absl::StrCat(ids.size(), " bytes are not ", rows, " rows of ", layers, " layers of ", top_k,
                                " ids of ", id_bytes, " bytes"));
  }
  const std::string header = MakeNpyHeader(id_bytes == 1 ? DType::kU8 : DType::kU16, {rows, layers, top_k});
  sample.file = absl::StrFormat("%08d.npy", run_.samples.size());
  sample.file_bytes = static_cast<int64_t>(header.size() + ids.size());
  sample.crc32c = Crc32cExtend(Crc32c(AsBytes(header)), ids);
  if (absl::Status status = WriteFile(directory_ / sample.file, {AsBytes(header), ids}); !status.ok()) return status;
  names_.insert(sample.sample);
  run_.samples.push_back(std::move(sample));
  return absl::OkStatus();
}

absl::Status RunExporter::Finish() {
  const std::string index = ExportedIndexToJson(run_);
  if (absl::Status status = WriteFile(directory_ / kIndex, {AsBytes(index)}); !status.ok()) return status;
  return WriteFile(directory_ / kMarker, {AsBytes(MarkerOf(AsBytes(index)))});
}

absl::StatusOr<ExportedRun> ReadExportedRun(const std::filesystem::path& directory) {
  const auto marker = ReadFile(directory / kMarker);
  if (!marker.ok()) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat(directory.string(), ": no exported run that was written to its end: ", marker.status().message()),
        {.reason = Reason::kNotCommitted, .field = kMarker});
  }
  const auto index = ReadFile(directory / kIndex);
  if (!index.ok()) return Damaged(index.status().message());
  if (AsText(*marker) != MarkerOf(*index)) {
    return Damaged(absl::StrCat((directory / kIndex).string(), ": does not fit its CRC32C in ", kMarker));
  }
  return ExportedIndexFromJson(AsText(*index));
}

absl::StatusOr<std::vector<uint8_t>> ReadExportedFile(const std::filesystem::path& directory,
                                                      const ExportedSample& sample) {
  auto bytes = ReadFile(directory / sample.file);
  if (!bytes.ok()) return Damaged(bytes.status().message(), sample.sample);
  if (static_cast<int64_t>(bytes->size()) == sample.file_bytes && Crc32c(*bytes) == sample.crc32c) return bytes;
  return Damaged(absl::StrCat("sample ", sample.sample, ": ", (directory / sample.file).string(),
                              " does not fit its CRC32C in the index"),
                 sample.sample);
}

}  // namespace routing_replay
