#include "proto/exported/exported_run.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/exported/files.h"
#include "proto/exported/found_run.h"
#include "proto/exported/index_json.h"
#include "proto/wire/payload/npy.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
namespace {

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

DType DTypeOf(const Geometry& geometry) { return geometry.max_id_bytes() == 1 ? DType::kU8 : DType::kU16; }

std::vector<int64_t> ShapeOf(const Geometry& geometry, const ExportedSample& sample) {
  return {sample.recorded_rows(), geometry.num_moe_layers(), geometry.max_top_k()};
}

// What the marker says of the index.
std::string MarkerOf(absl::Span<const uint8_t> index) { return absl::StrFormat("%08x\n", Crc32c(index)); }

}  // namespace

absl::StatusOr<std::unique_ptr<RunExporter>> RunExporter::Create(const std::filesystem::path& directory,
                                                                 std::string run, Producer producer,
                                                                 Geometry geometry) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const bool empty = !error && std::filesystem::is_empty(directory, error);
  if (error) return absl::InternalError(absl::StrCat(directory.string(), ": ", error.message()));
  if (!empty) return absl::AlreadyExistsError(absl::StrCat(directory.string(), ": is not empty"));
  return Continue(directory, std::move(run), producer, std::move(geometry));
}

absl::StatusOr<std::unique_ptr<RunExporter>> RunExporter::Continue(const std::filesystem::path& directory,
                                                                   std::string run, Producer producer,
                                                                   Geometry geometry, DurableFiles& files) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return absl::InternalError(absl::StrCat(directory.string(), ": ", error.message()));
  std::unique_ptr<RunExporter> exporter(new RunExporter(
      directory, {.run = std::move(run), .producer = producer, .geometry = std::move(geometry), .samples = {}}, files));
  if (absl::Status status = exporter->Begin(); !status.ok()) return status;
  return exporter;
}

absl::Status RunExporter::Begin() {
  auto lock = DirectoryLock::Take(directory_);
  if (!lock.ok()) return lock.status();
  lock_ = *std::move(lock);
  auto found = FindExported(directory_, run_);
  if (!found.ok()) return found.status();
  run_.samples = std::move(found->samples);
  IndexPlaces();
  damaged_ = std::move(found->damaged);
  next_file_ = found->next_file;
  finished_ = found->finished && found->journalled.empty();
  return StartJournal(found->journalled);
}

void RunExporter::IndexPlaces() {
  places_.clear();
  for (size_t i = 0; i < run_.samples.size(); ++i) places_[run_.samples[i].sample] = i;
}

// Whatever was torn at the end of the journal of an export before is not in it any more.
absl::Status RunExporter::StartJournal(const std::set<std::string>& journalled) {
  ExportedRun empty{.run = run_.run, .producer = run_.producer, .geometry = run_.geometry, .samples = {}};
  std::string journal = JournalLine(ExportedIndexToJson(empty));
  for (const ExportedSample& sample : run_.samples) {
    if (journalled.count(sample.sample) != 0) absl::StrAppend(&journal, JournalLine(ExportedSampleToJson(sample)));
  }
  return files_.Replace(directory_ / kExportJournal, {AsBytes(journal)});
}

const ExportedSample* RunExporter::Find(const std::string& sample) const {
  const auto place = places_.find(sample);
  return place == places_.end() || damaged_.count(sample) != 0 ? nullptr : &run_.samples[place->second];
}

absl::Status RunExporter::CheckFits(const ExportedSample& sample, absl::Span<const uint8_t> ids) const {
  if (absl::Status status = CheckId(sample.sample, "sample"); !status.ok()) return status;
  if (sample.num_tokens < 1) return Invalid(sample, Reason::kField, "num_tokens", "is below 1");
  if (absl::Status status = CheckNormal(sample.unrecorded, {0, sample.num_tokens - 1}); !status.ok()) return status;
  if (added_.count(sample.sample) != 0) return Invalid(sample, Reason::kField, "sample", "is there already");
  const Geometry& geometry = run_.geometry;
  const int64_t rows = sample.recorded_rows(), given = static_cast<int64_t>(ids.size());
  const int64_t id_bytes = geometry.max_id_bytes();
  if (given % id_bytes == 0 && geometry.array_ids(rows) == given / id_bytes) return absl::OkStatus();
  return Invalid(sample, Reason::kLength, "ids",
                 absl::StrCat(ids.size(), " bytes are not ", rows, " rows of ", geometry.num_moe_layers(),
                              " layers of ", geometry.max_top_k(), " ids of ", id_bytes, " bytes"));
}

absl::Status RunExporter::Add(ExportedSample sample, absl::Span<const uint8_t> ids) {
  if (absl::Status status = CheckFits(sample, ids); !status.ok()) return status;
  const std::string header = MakeNpyHeader(DTypeOf(run_.geometry), ShapeOf(run_.geometry, sample));
  sample.file = ExportFileName(next_file_++);
  sample.file_bytes = static_cast<int64_t>(header.size() + ids.size());
  sample.crc32c = Crc32cExtend(Crc32c(AsBytes(header)), ids);
  absl::Status status = files_.Replace(directory_ / sample.file, {AsBytes(header), ids});
  const std::string line = JournalLine(ExportedSampleToJson(sample));
  if (status.ok()) status = files_.Append(directory_ / kExportJournal, AsBytes(line));
  if (!status.ok()) return status;
  finished_ = false;
  added_.insert(sample.sample);
  damaged_.erase(sample.sample);
  const auto [place, is_new] = places_.emplace(sample.sample, run_.samples.size());
  if (is_new) {
    run_.samples.push_back(std::move(sample));
  } else {
    run_.samples[place->second] = std::move(sample);
  }
  return absl::OkStatus();
}

void RunExporter::SetGroup(const std::string& sample, int64_t group) {
  int64_t& known = run_.samples[places_.at(sample)].group;
  if (known != group) finished_ = false;
  known = group;
}

void RunExporter::SetReleased(const std::string& sample, bool released) {
  bool& known = run_.samples[places_.at(sample)].released;
  if (known != released) finished_ = false;
  known = released;
}

int64_t RunExporter::DropIf(const std::function<bool(const ExportedSample&)>& gone) {
  std::vector<ExportedSample> kept;
  for (ExportedSample& sample : run_.samples) {
    if (!sample.released && gone(sample)) {
      damaged_.erase(sample.sample);
    } else {
      kept.push_back(std::move(sample));
    }
  }
  const auto dropped = static_cast<int64_t>(run_.samples.size() - kept.size());
  if (dropped > 0) finished_ = false;
  run_.samples = std::move(kept);
  IndexPlaces();
  return dropped;
}

absl::Status RunExporter::WriteIndex() {
  const std::filesystem::path index = directory_ / kExportIndex, marker = directory_ / kExportMarker;
  const std::string json = ExportedIndexToJson(run_), crc = MarkerOf(AsBytes(json));
  // The names of the rows' files are on the disk before an index speaks of them; then there is no moment at which a
  // marker stands beside an index that it does not fit.
  absl::Status status = files_.Write(index.string() + ".part", {AsBytes(json)});
  if (status.ok()) status = files_.SyncDirectory(directory_);
  if (status.ok()) status = files_.Remove(marker);
  if (status.ok()) status = files_.SyncDirectory(directory_);
  if (status.ok()) status = files_.Rename(index.string() + ".part", index);
  if (status.ok()) status = files_.SyncDirectory(directory_);
  if (status.ok()) status = files_.Replace(marker, {AsBytes(crc)});
  if (status.ok()) status = files_.SyncDirectory(directory_);
  return status;
}

absl::Status RunExporter::RemoveLeftovers() {
  std::set<std::string> named;
  for (const ExportedSample& sample : run_.samples) named.insert(sample.file);
  std::vector<std::filesystem::path> leftovers = {directory_ / kExportJournal};
  std::error_code error;
  auto entry = std::filesystem::directory_iterator(directory_, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (IsExportFileName(name) && named.count(name) == 0) leftovers.push_back(entry->path());
  }
  if (error) return absl::InternalError(absl::StrCat(directory_.string(), ": ", error.message()));
  for (const std::filesystem::path& path : leftovers) {
    if (absl::Status status = files_.Remove(path); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status RunExporter::Finish() {
  if (!damaged_.empty()) {
    const std::string& sample = *damaged_.begin();
    return Damaged(absl::StrCat("sample ", sample, ": the file that an export before this one wrote in ",
                                directory_.string(), " is gone or cut"),
                   sample);
  }
  if (!finished_) {
    if (absl::Status status = WriteIndex(); !status.ok()) return status;
  }
  finished_ = true;
  return RemoveLeftovers();
}

absl::StatusOr<ExportedRun> ReadExportedRun(const std::filesystem::path& directory) {
  const auto marker = ReadFile(directory / kExportMarker);
  if (!marker.ok()) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat(directory.string(), ": no exported run that was written to its end: ", marker.status().message()),
        {.reason = Reason::kNotCommitted, .field = kExportMarker});
  }
  const auto index = ReadFile(directory / kExportIndex);
  if (!index.ok()) return Damaged(index.status().message());
  if (AsText(*marker) != MarkerOf(*index)) {
    return Damaged(absl::StrCat((directory / kExportIndex).string(), ": does not fit its CRC32C in ", kExportMarker));
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

absl::StatusOr<ExportedIds> ReadExportedIds(const std::filesystem::path& directory, const Geometry& geometry,
                                            const ExportedSample& sample) {
  auto file = ReadExportedFile(directory, sample);
  if (!file.ok()) return file.status();
  const auto header = ParseNpyHeader(*file);
  if (!header.ok()) return WithSample(header.status(), sample.sample);
  const std::vector<int64_t> shape = ShapeOf(geometry, sample);
  const auto ids = geometry.array_ids(shape[0]);
  const size_t given = file->size() - header->data_offset;
  const bool fits = header->dtype == DTypeOf(geometry) && header->shape == shape && ids &&
                    given / geometry.max_id_bytes() == static_cast<size_t>(*ids) &&
                    given % geometry.max_id_bytes() == 0;
  if (fits) return ExportedIds(*std::move(file), header->data_offset);
  return Invalid(sample, Reason::kShape, "file",
                 absl::StrCat(sample.file, " is not an array of ", shape[0], " rows, ", shape[1], " layers and K ",
                              shape[2], " in the dtype of storage"));
}

}  // namespace routing_replay
