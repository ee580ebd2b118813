// Import: each sample of a directory is compared with what the run has of it, and appended from there on.
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/call/cancellation.h"
#include "client/checkpoint/run_portions.h"
#include "client/checkpoint/sample_import.h"
#include "client/reader/read_checker.h"
#include "proto/wire/mutex.h"
#include "routing_replay/checkpoint.h"

namespace routing_replay {

using namespace client;  // NOLINT(google-build-using-namespace)

namespace {

// Samples whose state is asked for in one call of an import.
constexpr size_t kStatesPerCall = 1000;
constexpr std::chrono::hours kFlushTimeout(24);  // The appender has timeouts of its own.

// The first append that went wrong.
class FirstFailure {
 public:
  void On(const AppendOutcome& outcome) {
    absl::Status status = WithSample(outcome.status, outcome.sample);
    if (status.ok() && outcome.conflicting_rows > 0) {
      status = MakeError(absl::StatusCode::kAlreadyExists,
                         absl::StrCat("sample ", outcome.sample, ": ", outcome.conflicting_rows,
                                      " rows were appended by somebody else meanwhile, with other routes"),
                         {.reason = Reason::kConflictingRows, .sample = outcome.sample});
    }
    const MutexLock lock(mutex_);
    if (status_.ok()) status_ = status;
  }
  absl::Status status() const {
    const MutexLock lock(mutex_);
    return status_;
  }

 private:
  mutable Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class Importer {
 public:
  Importer(const std::filesystem::path& directory, const ExportedRun& exported, std::shared_ptr<Run> run,
           const ImportOptions& options)
      : directory_(directory), exported_(exported), run_(std::move(run)), options_(options) {
    AppenderOptions appending = options.appender;
    appending.on_outcome = [this](const AppendOutcome& outcome) { failure_.On(outcome); };
    appender_ = run_->NewAppender(std::move(appending));
    progress_.total = static_cast<int64_t>(exported_.samples.size());
  }

  absl::StatusOr<ImportOutcome> Import() {
    const absl::Span<const ExportedSample> samples = exported_.samples;
    for (size_t at = 0; at < samples.size(); at += kStatesPerCall) {
      if (absl::Status status = ImportSome(samples.subspan(at, kStatesPerCall)); !status.ok()) return status;
    }
    const absl::Status flushed = appender_->Flush(kFlushTimeout);
    if (absl::Status status = failure_.status(); !status.ok()) return status;
    if (!flushed.ok()) return flushed;
    outcome_.run = run_->name();
    outcome_.samples = progress_.samples;
    outcome_.bytes = progress_.bytes;
    return outcome_;
  }

 private:
  absl::Status ImportSome(absl::Span<const ExportedSample> samples) {
    std::vector<std::string> names;
    for (const ExportedSample& sample : samples) names.push_back(sample.sample);
    auto states = run_->StatMany(names, exported_.producer);
    if (!states.ok()) return states.status();
    std::unordered_map<std::string, SampleState> by_name;
    for (SampleState& state : *states) by_name.emplace(state.sample, std::move(state));
    for (const ExportedSample& sample : samples) {
      const auto there = by_name.find(sample.sample);
      absl::Status status = ImportOne(sample, there == by_name.end() ? std::nullopt : std::optional(there->second));
      status.Update(failure_.status());
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status ImportOne(const ExportedSample& sample, const std::optional<SampleState>& there) {
    if (absl::Status over = CheckCall(); !over.ok()) return over;
    const auto import = SampleImport::Begin(directory_, exported_.geometry, exported_.producer, sample, there);
    if (!import.ok()) return import.status();
    if (absl::Status status = Compare(sample.sample, *import); !status.ok()) return status;
    const std::vector<ImportAppend> appends = import->Appends();
    for (const ImportAppend& append : appends) {
      const absl::Status status = appender_->Append(append.Options(), append.tensor, append.ids);
      if (!status.ok()) return WithSample(status, sample.sample);
      progress_.bytes += static_cast<int64_t>(append.ids.size());
    }
    ++progress_.samples;
    outcome_.appended += !appends.empty();
    if (options_.on_progress) options_.on_progress(progress_);
    return absl::OkStatus();
  }

  absl::Status Compare(const std::string& sample, const SampleImport& import) {
    if (import.to_compare().empty()) return absl::OkStatus();
    const ReadRequest request{.producer = exported_.producer,
                              .samples = {{.sample = sample, .rows = import.to_compare()}}};
    auto ordinals = LayerOrdinals(run_->geometry(), request.layers);
    if (!ordinals.ok()) return ordinals.status();
    PlaneCollector planes(run_->geometry(), request, *std::move(ordinals));
    absl::Status status = run_->Read(request, planes, options_.read_timeout);
    return status.ok() ? import.Compare(planes.samples()[0]) : status;
  }

  const std::filesystem::path& directory_;
  const ExportedRun& exported_;
  const std::shared_ptr<Run> run_;
  const ImportOptions& options_;
  FirstFailure failure_;
  CheckpointProgress progress_;
  ImportOutcome outcome_;
  std::unique_ptr<Appender> appender_;  // Ends before what it tells of outcomes.
};

}  // namespace

absl::StatusOr<ImportOutcome> ImportRun(Client& client, const std::filesystem::path& directory,
                                        const ImportOptions& options) {
  auto exported = ReadExportedRun(directory);
  if (!exported.ok()) return exported.status();
  std::erase_if(exported->samples,
                [&](const ExportedSample& sample) { return !InGroups(options.groups, sample.group); });
  auto run = client.OpenRun(options.run.empty() ? exported->run : options.run, exported->geometry, options.settings);
  if (!run.ok()) return run.status();
  return Importer(directory, *exported, *std::move(run), options).Import();
}

}  // namespace routing_replay
