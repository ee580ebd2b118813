#include "proto/exported/exported_run.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/exported/files.h"
#include "proto/exported/marked_run.h"
#include "proto/exported/npy_shape.h"
#include "proto/wire/payload/npy.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {

absl::StatusOr<ExportedRun> ReadExportedRun(const std::filesystem::path& directory) {
  auto marked = ReadMarkedRun(directory);
  if (!marked.ok()) return marked.status();
  return std::move(marked->run);
}

absl::StatusOr<std::vector<uint8_t>> ReadExportedFile(const std::filesystem::path& directory,
                                                      const ExportedSample& sample) {
  const std::filesystem::path path = directory / sample.file;
  const auto no_fit = [&] {
    return Damaged(absl::StrCat("sample ", sample.sample, ": ", path.string(), " does not fit its CRC32C in the index"),
                   sample.sample);
  };
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (!error && size != static_cast<uintmax_t>(sample.file_bytes)) return no_fit();
  auto bytes = ReadFile(path);
  if (!bytes.ok()) return Damaged(bytes.status().message(), sample.sample);
  if (static_cast<int64_t>(bytes->size()) == sample.file_bytes && Crc32c(*bytes) == sample.crc32c) return bytes;
  return no_fit();
}

absl::StatusOr<ExportedIds> ReadExportedIds(const std::filesystem::path& directory, const Geometry& geometry,
                                            const ExportedSample& sample) {
  auto file = ReadExportedFile(directory, sample);
  if (!file.ok()) return file.status();
  const auto header = ParseNpyHeader(*file);
  if (!header.ok()) return WithSample(header.status(), sample.sample);
  const std::vector<int64_t> shape = NpyShape(geometry, sample);
  const auto ids = geometry.array_ids(shape[0]);
  const size_t given = file->size() - header->data_offset;
  const bool fits = header->dtype == NpyDType(geometry) && header->shape == shape && ids &&
                    given / geometry.max_id_bytes() == static_cast<size_t>(*ids) &&
                    given % geometry.max_id_bytes() == 0;
  if (fits) return ExportedIds(*std::move(file), header->data_offset);
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("file: ", sample.file, " is not an array of ", shape[0], " rows, ", shape[1],
                                " layers and K ", shape[2], " in the dtype of storage"),
                   {.reason = Reason::kShape, .field = "file", .sample = sample.sample});
}

}  // namespace wire
}  // namespace routing_replay
