#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/exported/exported_run.h"
#include "proto/exported/files.h"
#include "proto/exported/found_run.h"
#include "proto/exported/index_json.h"
#include "proto/exported/layout.h"
#include "proto/exported/marked_run.h"
#include "proto/exported/npy_shape.h"
#include "proto/wire/payload/npy.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

// What is synced at once: enough for a file system to write many at a time, and no more than a moment's worth of a
// disk.
constexpr size_t kSyncFiles = 1024;
constexpr int64_t kSyncBytes = int64_t{256} << 20;

absl::Status Invalid(const ExportedSample& sample, Reason reason, absl::string_view field, absl::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat(field, ": ", what),
                   {.reason = reason, .field = std::string(field), .sample = sample.sample});
}

bool IsThere(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::symlink_status(path, error));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunExporter>> RunExporter::Create(const std::filesystem::path& directory,
                                                                 std::string run, Producer producer,
                                                                 Geometry geometry) {
  std::error_code error;
  const bool is_new = !std::filesystem::exists(directory, error) || std::filesystem::is_empty(directory, error);
  if (error) return DirectoryError(error, directory);
  if (!is_new) return absl::AlreadyExistsError(absl::StrCat(directory.string(), ": is not empty"));
  return Continue(directory, std::move(run), producer, std::move(geometry));
}

absl::StatusOr<std::unique_ptr<RunExporter>> RunExporter::Continue(const std::filesystem::path& directory,
                                                                   std::string run, Producer producer,
                                                                   Geometry geometry, DurableFiles& files) {
  if (absl::Status status = files.MakeDirectories(directory); !status.ok()) return status;
  std::unique_ptr<RunExporter> exporter(new RunExporter(
      directory, {.run = std::move(run), .producer = producer, .geometry = std::move(geometry), .samples = {}}, files));
  if (absl::Status status = exporter->Begin(); !status.ok()) return status;
  return exporter;
}

absl::Status RunExporter::Begin() {
  // What is not ours does not even get the file of the lock. Another export that begins just now has made it.
  if (!IsThere(directory_ / kExportLock)) {
    absl::Status status = FindExported(directory_, run_).status();
    if (!status.ok() && !IsThere(directory_ / kExportLock)) return status;
  }
  auto lock = DirectoryLock::Take(directory_);
  if (!lock.ok()) return lock.status();
  lock_ = *std::move(lock);
  auto found = FindExported(directory_, run_);
  if (!found.ok()) return found.status();
  run_.samples = std::move(found->samples);
  IndexPlaces();
  damaged_ = std::move(found->damaged);
  next_file_ = found->next_file;
  index_ = found->index;
  indexes_ = std::move(found->indexes);
  const auto above = indexes_.lower_bound(index_);
  former_index_ = above == indexes_.begin() ? 0 : *std::prev(above);
  journal_files_ = std::move(found->journal_files);
  journal_is_torn_ = found->journal_is_torn;
  for (const std::string& file : found->resumed) written_.push_back(directory_ / file);
  finished_ = found->marked && written_.empty();
  has_journal_ = found->has_journal && !found->journal_is_past;
  if (found->journal_is_past) RemoveLeftovers();
  return absl::OkStatus();
}

void RunExporter::IndexPlaces() {
  places_.clear();
  for (size_t i = 0; i < run_.samples.size(); ++i) places_[run_.samples[i].sample] = i;
}

// Its name is on the disk before that of anything else: what an export leaves is never without it.
absl::Status RunExporter::StartJournal() {
  if (has_journal_) return absl::OkStatus();
  const int64_t generation = indexes_.empty() ? 1 : *indexes_.rbegin() + 1;
  const std::string start = JournalStart(run_, generation);
  absl::Status status = files_.Replace(directory_ / kExportJournal, directory_ / kJournalPart, {AsBytes(start)});
  if (status.ok()) status = files_.SyncDirectory(directory_);
  has_journal_ = status.ok();
  journal_is_torn_ = false;
  return status;
}

absl::Status RunExporter::AppendToJournal(const ExportedSample& sample) {
  if (absl::Status status = StartJournal(); !status.ok()) return status;
  // A line that was torn gets its end, and is none.
  const std::string line = absl::StrCat(journal_is_torn_ ? "\n" : "", JournalLine(ExportedSampleToJson(sample)));
  absl::Status status = files_.Append(directory_ / kExportJournal, AsBytes(line));
  journal_is_torn_ = !status.ok();
  if (status.ok()) journal_files_.push_back(sample.file);
  return status;
}

const ExportedSample* RunExporter::Find(const std::string& sample) const {
  const auto place = places_.find(sample);
  return place == places_.end() || damaged_.count(sample) != 0 ? nullptr : &run_.samples[place->second];
}

absl::Status RunExporter::CheckFile(const std::string& sample) {
  const auto place = places_.find(sample);
  if (place == places_.end()) {
    return MakeError(absl::StatusCode::kNotFound, absl::StrCat("sample ", sample, " is not in ", directory_.string()),
                     {.sample = sample});
  }
  const absl::Status status = ReadExportedFile(directory_, run_.samples[place->second]).status();
  if (!status.ok()) damaged_.insert(sample);
  return status;
}

absl::Status RunExporter::CheckFits(const ExportedSample& sample, absl::Span<const uint8_t> ids) const {
  if (absl::Status status = CheckId(sample.sample, "sample"); !status.ok()) return status;
  if (sample.num_tokens < 1) return Invalid(sample, Reason::kField, "num_tokens", "is below 1");
  if (sample.num_tokens > kMaxRows + 1) {
    return Invalid(sample, Reason::kField, "num_tokens", absl::StrCat("is above the limit of ", kMaxRows + 1));
  }
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
  const std::string header = MakeNpyHeader(NpyDType(run_.geometry), NpyShape(run_.geometry, sample));
  sample.file = ExportFileName(next_file_++);
  sample.file_bytes = static_cast<int64_t>(header.size() + ids.size());
  sample.crc32c = Crc32cExtend(Crc32c(AsBytes(header)), ids);
  const std::filesystem::path path = directory_ / sample.file;
  absl::Status status = AppendToJournal(sample);
  if (status.ok()) status = files_.Write(path, {AsBytes(header), ids});
  if (!status.ok()) return status;
  written_.push_back(path);
  written_bytes_ += sample.file_bytes;
  if (written_.size() >= kSyncFiles || written_bytes_ >= kSyncBytes) status = SyncWritten();
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

absl::Status RunExporter::SyncWritten() {
  if (sync_status_.ok() && !written_.empty()) sync_status_ = files_.Sync(written_);
  written_.clear();
  written_bytes_ = 0;
  return sync_status_;
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
  absl::Status status = StartJournal();
  if (status.ok()) status = SyncWritten();
  if (!status.ok()) return status;
  if (!is_unsure_) RemoveUnmarkedIndexes();
  run_.generation = indexes_.empty() ? 1 : *indexes_.rbegin() + 1;
  indexes_.insert(run_.generation);
  const std::string json = ExportedIndexToJson(run_);
  const std::string marker = ExportMarker{run_.generation, Crc32c(AsBytes(json))}.ToText();
  status = files_.Replace(directory_ / IndexFileName(run_.generation), directory_ / kIndexPart, {AsBytes(json)});
  // All names are on the disk before a marker stands for them.
  if (status.ok()) status = files_.SyncDirectory(directory_);
  is_unsure_ = true;
  if (status.ok()) status = files_.Replace(directory_ / kExportMarker, directory_ / kMarkerPart, {AsBytes(marker)});
  if (status.ok()) status = files_.SyncDirectory(directory_);
  if (!status.ok()) return status;
  is_unsure_ = false;
  former_index_ = std::exchange(index_, run_.generation);
  finished_ = true;
  has_journal_ = false;  // It is of the past.
  return status;
}

// Of exports that ended before their marker: what is between the index that held and the one that holds is the former
// one's, wherever this ends.
void RunExporter::RemoveUnmarkedIndexes() {
  const auto first = indexes_.upper_bound(index_);
  const std::set<int64_t> unmarked(first, indexes_.end());
  for (const int64_t index : unmarked) {
    if (FilesOf(index)) (void)files_.Remove(directory_ / IndexFileName(index));
  }
}

std::optional<std::set<std::string>> RunExporter::FilesOf(int64_t index) const {
  const auto bytes = ReadFile(directory_ / IndexFileName(index));
  if (!bytes.ok()) return std::nullopt;
  const auto run = ExportedIndexFromJson(AsText(*bytes));
  if (!run.ok() || !CheckSameRun(directory_, *run, run_).ok()) return std::nullopt;
  std::set<std::string> files;
  for (const ExportedSample& sample : run->samples) files.insert(sample.file);
  return files;
}

bool RunExporter::RemoveFiles(const std::set<std::string>& files, const std::set<std::string>& but) {
  bool removed = true;
  for (const std::string& file : files) {
    // An index from elsewhere can name anything; exports write files of such names alone.
    if (but.count(file) != 0 || !ExportFileNumber(file)) continue;
    removed &= files_.Remove(directory_ / file).ok();
  }
  return removed;
}

void RunExporter::RemoveLeftovers() {
  for (const char* part : {kIndexPart, kMarkerPart, kJournalPart}) (void)files_.Remove(directory_ / part);
  std::vector<int64_t> old;
  for (const int64_t index : indexes_) {
    if (index != index_ && index != former_index_) old.push_back(index);
  }
  std::set<std::string> needed;
  if (!old.empty() || !journal_files_.empty()) {
    for (const ExportedSample& sample : run_.samples) needed.insert(sample.file);
    auto former = former_index_ == 0 ? std::set<std::string>() : FilesOf(former_index_);
    if (!former) return;
    needed.merge(*former);
  }
  for (const int64_t index : old) {
    const auto files = FilesOf(index);
    // What names a file goes after it: whatever ends this, the next export finds what is left.
    if (!files || !RemoveFiles(*files, needed)) continue;
    if (files_.Remove(directory_ / IndexFileName(index)).ok()) indexes_.erase(index);
  }
  if (!RemoveFiles({journal_files_.begin(), journal_files_.end()}, needed)) return;
  if (files_.Remove(directory_ / kExportJournal).ok()) journal_files_.clear();
}

absl::Status RunExporter::Finish() {
  // An export that was stopped may have put the marker there and not waited for the disk.
  absl::Status status = finished_ ? files_.SyncDirectory(directory_) : WriteIndex();
  if (!status.ok()) return status;
  RemoveLeftovers();
  if (damaged_.empty()) return absl::OkStatus();
  const std::string& sample = *damaged_.begin();
  return Damaged(
      absl::StrCat("sample ", sample, ": the file that an export before this one wrote in ", directory_.string(),
                   " is gone or not as it was written (", damaged_.size(), " such samples)"),
      sample);
}

}  // namespace wire
}  // namespace routing_replay
