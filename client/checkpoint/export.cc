// Export: lists the run, takes over samples from the previous export, reads the rest in portions, writes.
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/call/cancellation.h"
#include "client/checkpoint/run_portions.h"
#include "client/reader/decoded_rows.h"
#include "client/reader/read_checker.h"
#include "proto/exported/exported_run.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/checkpoint.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {

using namespace client;  // NOLINT(google-build-using-namespace)

namespace {

absl::Status CheckPrevious(const std::filesystem::path& directory, const ExportedRun& previous, Run& run,
                           Producer producer) {
  const auto mismatch = [&](Reason reason, absl::string_view field, absl::string_view what) {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat(directory.string(), ": ", field, ": the previous export has ", what),
                     {.reason = reason, .field = std::string(field)});
  };
  if (previous.run != run.name()) return mismatch(Reason::kField, "run", absl::StrCat("run \"", previous.run, "\""));
  if (previous.producer != producer) return mismatch(Reason::kField, "producer", "the samples of the other producer");
  if (previous.geometry != run.geometry()) return mismatch(Reason::kGeometryMismatch, "geometry", "another geometry");
  return absl::OkStatus();
}

class Exporter {
 public:
  Exporter(Run& run, const ExportOptions& options, std::unique_ptr<RunExporter> files, ExportedRun previous)
      : run_(run), options_(options), files_(std::move(files)), previous_(std::move(previous)) {
    for (const ExportedSample& sample : previous_.samples) by_name_.emplace(sample.sample, &sample);
  }

  absl::StatusOr<ExportOutcome> Export() {
    // With a previous export, list all groups, to tell a sample that was released from one that moved to another group.
    RR_ASSIGN_OR_RETURN(auto samples,
                        run_.List(options_.previous.empty() ? options_.groups : std::nullopt, options_.producer));
    RR_RETURN_IF_ERROR(TakeOver(std::move(samples)));
    const auto read = [this](absl::Span<const SampleState> portion) { return ReadSome(portion); };
    RR_RETURN_IF_ERROR(ForEachPortion(run_, options_.producer, to_read_, read));
    RR_RETURN_IF_ERROR(files_->Finish());
    if (!left_out_.ok()) return left_out_;
    outcome_.samples = static_cast<int64_t>(files_->contents().samples.size());
    return outcome_;
  }

 private:
  // Takes samples from the previous export: unchanged ones, and those that the run has released since.
  absl::Status TakeOver(std::vector<SampleState> samples) {
    std::unordered_set<std::string> in_run;
    for (SampleState& state : samples) {
      in_run.insert(state.sample);
      if (!InGroups(options_.groups, state.group)) continue;
      if (!state.sealed()) {
        ++outcome_.unsealed;
        continue;
      }
      const auto there = by_name_.find(state.sample);
      const bool same = there != by_name_.end() && there->second->content_id == state.content_id &&
                        there->second->revision == state.revision && there->second->num_tokens == state.num_tokens;
      if (same && Take(*there->second, state.group).ok()) continue;
      to_read_.push_back(std::move(state));
    }
    for (const ExportedSample& sample : previous_.samples) {
      if (in_run.count(sample.sample) > 0 || !InGroups(options_.groups, sample.group)) continue;
      const absl::Status status = Take(sample, sample.group);
      if (absl::IsDataLoss(status)) {
        left_out_.Update(status);
      } else if (!status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Take(ExportedSample sample, int64_t group) {
    sample.group = group;
    return files_->Take(options_.previous, std::move(sample));
  }

  absl::Status ReadSome(absl::Span<const SampleState> states) {
    RR_RETURN_IF_ERROR(CheckCall());
    ReadRequest request{.producer = options_.producer};
    for (const SampleState& state : states) request.samples.push_back({.sample = state.sample});
    RR_ASSIGN_OR_RETURN(auto ordinals, LayerOrdinals(run_.geometry(), request.layers));
    PlaneCollector planes(run_.geometry(), request, std::move(ordinals));
    RR_RETURN_IF_ERROR(run_.Read(request, planes, kPortionTimeout));
    for (size_t i = 0; i < states.size(); ++i) {
      SamplePlanes& read = planes.samples()[i];
      RR_RETURN_IF_ERROR(OnSample(states[i], read));
      read.ids = Buffer();
    }
    return absl::OkStatus();
  }

  // Writes a sample that was read, unless it was lost or has changed. `state`: its state when the run was listed.
  absl::Status OnSample(const SampleState& state, const SamplePlanes& read) {
    const SampleRecord& record = read.record;
    RR_RETURN_IF_ERROR(CheckAnswered(record, state.sample));
    if (record.status == SampleStatus::kLost) {
      left_out_.Update(MakeError(absl::StatusCode::kDataLoss,
                                 absl::StrCat("sample ", state.sample, " was lost: ", record.message),
                                 {.sample = state.sample, .revision = record.revision}));
      return absl::OkStatus();
    }
    const bool there = record.status == SampleStatus::kOk || record.status == SampleStatus::kNotRecorded;
    const bool same = record.content_id == state.content_id && record.revision == state.revision;
    if (there && same) return Write(state, read);
    // A sample with the status kNotFound was released meanwhile. Every other one was begun again: it is unsealed.
    outcome_.unsealed += record.status != SampleStatus::kNotFound;
    return absl::OkStatus();
  }

  absl::Status Write(const SampleState& state, const SamplePlanes& read) {
    ExportedSample sample{.sample = state.sample,
                          .group = state.group,
                          .num_tokens = *state.num_tokens,
                          .revision = state.revision,
                          .content_id = state.content_id,
                          .unrecorded = read.record.unrecorded,
                          .weights = read.record.weights};
    if (state.token_check) sample.token_checks = {*state.token_check};
    const std::vector<uint8_t> ids = RowMajor(read);
    RR_RETURN_IF_ERROR(files_->Add(std::move(sample), ids));
    ++outcome_.written;
    outcome_.bytes += static_cast<int64_t>(ids.size());
    return absl::OkStatus();
  }

  // Reorders the planes of a sample to rows: [layers][rows][K] → [rows][layers][K].
  std::vector<uint8_t> RowMajor(const SamplePlanes& read) const {
    const Geometry& geometry = run_.geometry();
    const auto layers = static_cast<size_t>(geometry.num_moe_layers());
    const auto rows = static_cast<size_t>(TotalRows(read.rows));
    const size_t cell = static_cast<size_t>(geometry.max_top_k()) * static_cast<size_t>(geometry.max_id_bytes());
    std::vector<uint8_t> out(read.ids.size());
    for (size_t layer = 0; layer < layers; ++layer) {
      const uint8_t* plane = read.ids.data() + layer * rows * cell;
      for (size_t row = 0; row < rows; ++row) {
        std::memcpy(out.data() + (row * layers + layer) * cell, plane + row * cell, cell);
      }
    }
    return out;
  }

  Run& run_;
  const ExportOptions& options_;
  const std::unique_ptr<RunExporter> files_;
  const ExportedRun previous_;
  std::unordered_map<std::string, const ExportedSample*> by_name_;  // Points into previous_.
  std::vector<SampleState> to_read_;
  absl::Status left_out_;  // The error of the first sample that was lost; all other samples are exported.
  ExportOutcome outcome_;
};

}  // namespace

absl::StatusOr<ExportOutcome> ExportRun(Run& run, const std::filesystem::path& directory,
                                        const ExportOptions& options) {
  ExportedRun previous{.run = run.name(), .producer = options.producer, .geometry = run.geometry(), .samples = {}};
  if (!options.previous.empty()) {
    RR_ASSIGN_OR_RETURN(auto read, ReadExportedRun(options.previous));
    previous = std::move(read);
    absl::Status status = CheckPrevious(options.previous, previous, run, options.producer);
    if (!status.ok()) return status;
  }
  RR_ASSIGN_OR_RETURN(auto files, RunExporter::Create(directory, run.name(), options.producer, run.geometry()));
  return Exporter(run, options, std::move(files), std::move(previous)).Export();
}

}  // namespace routing_replay
