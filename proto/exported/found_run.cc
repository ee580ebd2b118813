#include "proto/exported/found_run.h"

#include <algorithm>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/exported/directory_lock.h"
#include "proto/exported/files.h"
#include "proto/exported/index_json.h"
#include "proto/exported/layout.h"
#include "proto/exported/marked_run.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

bool IsOtherVersion(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  return detail && detail->reason == Reason::kVersionMismatch;
}

// Errors of ReadFile and ExportedIndexFromJson.
absl::StatusOr<ExportedRun> ReadIndex(const std::filesystem::path& path) {
  const auto bytes = ReadFile(path);
  if (!bytes.ok()) return bytes.status();
  return ExportedIndexFromJson(AsText(*bytes));
}

class Finder {
 public:
  Finder(const std::filesystem::path& directory, const ExportedRun& wanted) : directory_(directory), wanted_(wanted) {}

  absl::StatusOr<FoundRun> Find() {
    absl::Status status = LookAround();
    if (status.ok() && found_.has_journal) journal_status_ = ReadJournal();
    if (IsOtherVersion(journal_status_)) return journal_status_;
    if (status.ok()) status = has_marker_ ? ReadMarked() : ReadHighest();
    if (status.ok()) status = is_ours_ ? journal_status_ : CheckEmpty();
    if (status.ok() && !lines_.empty()) status = TakeJournal();
    if (!status.ok()) return status;
    return std::move(found_);
  }

 private:
  absl::Status LookAround() {
    std::error_code error;
    auto entry = std::filesystem::directory_iterator(directory_, error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      if (const auto number = IndexNumber(name)) found_.indexes.insert(*number);
      CountFile(name);
      has_marker_ |= name == kExportMarker;
      found_.has_journal |= name == kExportJournal;
      names_.insert(name);
    }
    return error ? DirectoryError(error, directory_) : absl::OkStatus();
  }

  void CountFile(const std::string& name) {
    if (const auto number = ExportFileNumber(name)) found_.next_file = std::max(found_.next_file, *number + 1);
  }

  absl::Status SomethingElse() const {
    return absl::AlreadyExistsError(
        absl::StrCat(directory_.string(), ": holds something else than an exported run, or nothing that shows it"));
  }

  // Nothing is of an export, as far as can be told: then nothing may be there, but for what one leaves before its first
  // journal has its name.
  absl::Status CheckEmpty() const {
    for (const std::string& name : names_) {
      std::error_code error;
      if (name == kExportLock && std::filesystem::file_size(directory_ / name, error) == 0 && !error) continue;
      if (name != kJournalPart) return SomethingElse();
      const auto part = ReadFile(directory_ / name);
      if (!part.ok() || !absl::StartsWith(JournalStart(wanted_, 1), AsText(*part))) return SomethingElse();
    }
    return absl::OkStatus();
  }

  // An index or a marker that cannot be used: of an exported run, if anything else is.
  absl::Status Unusable(const absl::Status& status) {
    if (IsOtherVersion(status)) return status;
    const bool shown = is_ours_ || std::any_of(found_.indexes.begin(), found_.indexes.end(), [this](int64_t number) {
                         return ReadIndex(directory_ / IndexFileName(number)).ok();
                       });
    return shown ? Damaged(status.message()) : SomethingElse();
  }

  absl::Status ReadMarked() {
    auto marked = ReadMarkedRun(directory_);
    if (!marked.ok()) {
      const auto text = ReadFile(directory_ / kExportMarker);
      is_ours_ |= text.ok() && ExportMarker::FromText(AsText(*text));
      return Unusable(marked.status());
    }
    found_.marked = true;
    return TakeIndex(marked->index, std::move(marked->run));
  }

  // An export that put its index in place and then not its marker, or somebody removed the marker.
  absl::Status ReadHighest() {
    if (found_.indexes.empty()) return absl::OkStatus();
    const int64_t number = *found_.indexes.rbegin();
    auto run = ReadIndex(directory_ / IndexFileName(number));
    if (!run.ok()) return Unusable(run.status());
    return TakeIndex(number, *std::move(run));
  }

  absl::Status TakeIndex(int64_t number, ExportedRun run) {
    if (absl::Status status = CheckSameRun(directory_, run, wanted_); !status.ok()) return status;
    is_ours_ = true;
    found_.index = number;
    for (ExportedSample& sample : run.samples) {
      std::error_code error;
      const uintmax_t size = std::filesystem::file_size(directory_ / sample.file, error);
      const bool fits = found_.marked ? !error && size == static_cast<uintmax_t>(sample.file_bytes)
                                      : ReadExportedFile(directory_, sample).ok();
      if (!fits) found_.damaged.insert(sample.sample);
      CountFile(sample.file);
      Take(std::move(sample));
    }
    return absl::OkStatus();
  }

  absl::Status ReadJournal() {
    const auto bytes = ReadFile(directory_ / kExportJournal);
    journal_ = bytes.ok() ? std::string(AsText(*bytes)) : std::string();
    lines_ = JournalLines(journal_);
    if (lines_.empty() || !absl::StartsWith(journal_, JournalLine(lines_[0]))) {
      lines_.clear();
      return Damaged(absl::StrCat((directory_ / kExportJournal).string(),
                                  ": does not start as a journal does; without it, what an export that was stopped "
                                  "wrote is not gone on with"));
    }
    const auto run = ExportedIndexFromJson(lines_[0]);
    if (!run.ok()) return run.status();
    is_ours_ = true;
    generation_ = run->generation;
    return CheckSameRun(directory_, *run, wanted_);
  }

  absl::Status TakeJournal() {
    found_.journal_is_past = found_.index >= generation_;
    found_.journal_is_torn = !absl::EndsWith(journal_, "\n");
    for (size_t i = 1; i < lines_.size(); ++i) {
      auto sample = ExportedSampleFromJson(lines_[i]);
      if (!sample.ok()) return sample.status();
      CountFile(sample->file);
      found_.journal_files.push_back(sample->file);
      if (found_.journal_is_past || !ReadExportedFile(directory_, *sample).ok()) continue;
      found_.damaged.erase(sample->sample);
      found_.resumed.push_back(sample->file);
      Take(*std::move(sample));
    }
    return absl::OkStatus();
  }

  void Take(ExportedSample sample) {
    const auto [at, is_new] = places_.emplace(sample.sample, found_.samples.size());
    if (is_new) {
      found_.samples.push_back(std::move(sample));
    } else {
      found_.samples[at->second] = std::move(sample);
    }
  }

  const std::filesystem::path& directory_;
  const ExportedRun& wanted_;
  FoundRun found_;
  std::set<std::string> names_;
  bool has_marker_ = false;
  bool is_ours_ = false;
  std::string journal_;
  std::vector<absl::string_view> lines_;  // … of it.
  absl::Status journal_status_;
  int64_t generation_ = 0;  // Of the journal.
  std::unordered_map<std::string, size_t> places_;
};

}  // namespace

absl::StatusOr<FoundRun> FindExported(const std::filesystem::path& directory, const ExportedRun& run) {
  return Finder(directory, run).Find();
}

absl::Status CheckSameRun(const std::filesystem::path& directory, const ExportedRun& there, const ExportedRun& wanted) {
  const auto other = [&](Reason reason, absl::string_view field, absl::string_view is, absl::string_view not_this) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat(directory.string(), ": holds an exported run of ", field, " ", is, ", not ", not_this),
        {.reason = reason, .field = std::string(field)});
  };
  if (there.run != wanted.run) return other(Reason::kField, "run", there.run, wanted.run);
  if (there.producer != wanted.producer) {
    return other(Reason::kField, "producer", ProducerName(there.producer), ProducerName(wanted.producer));
  }
  if (there.geometry == wanted.geometry) return absl::OkStatus();
  return other(Reason::kGeometryMismatch, "geometry", there.geometry.DebugString(), wanted.geometry.DebugString());
}

std::string JournalStart(const ExportedRun& run, int64_t generation) {
  return JournalLine(ExportedIndexToJson(
      {.run = run.run, .producer = run.producer, .geometry = run.geometry, .generation = generation, .samples = {}}));
}

}  // namespace wire
}  // namespace routing_replay
