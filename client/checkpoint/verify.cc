#include <algorithm>

#include "client/checkpoint/run_portions.h"
#include "proto/exported/exported_run.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/checkpoint.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {

using namespace client;  // NOLINT(google-build-using-namespace)

namespace {

// Counts what arrives and stores nothing.
class CountingSink final : public ReadSink {
 public:
  explicit CountingSink(size_t samples) : records(samples), rows(samples) {}

  absl::Status OnRecord(const SampleRecord& record) override {
    records[record.index] = record;
    rows[record.index] = 0;
    return absl::OkStatus();
  }
  absl::Status OnPiece(const ReadPiece& piece) override {
    bytes += static_cast<int64_t>(piece.bytes.size());
    if (piece.layer_begin == 0) rows[piece.sample_index] += piece.rows.size();
    return absl::OkStatus();
  }

  std::vector<SampleRecord> records;  // The last record of each requested sample.
  std::vector<int64_t> rows;          // The number of rows received of each requested sample.
  int64_t bytes = 0;
};

class Verifier {
 public:
  Verifier(Run& run, const VerifyOptions& options) : run_(run), options_(options) {}

  absl::StatusOr<VerifyOutcome> Verify() {
    RR_ASSIGN_OR_RETURN(const auto samples, run_.List(options_.groups, options_.producer));
    const auto verify = [this](absl::Span<const SampleState> portion) { return VerifySome(portion); };
    RR_RETURN_IF_ERROR(ForEachPortion(run_, options_.producer, samples, verify));
    return std::move(outcome_);
  }

 private:
  absl::Status VerifySome(absl::Span<const SampleState> samples) {
    while (!samples.empty()) {
      ReadRequest request{.producer = options_.producer};
      for (const SampleState& state : samples) request.samples.push_back({.sample = state.sample});
      CountingSink sink(samples.size());
      const absl::Status status = run_.Read(std::move(request), sink, kPortionTimeout);
      outcome_.bytes += sink.bytes;
      const size_t whole = status.ok() ? samples.size() : DamagedIndex(status, samples);
      if (whole > samples.size()) return status;
      for (size_t i = 0; i < whole; ++i) RR_RETURN_IF_ERROR(Judge(samples[i], sink, i));
      if (status.ok()) return absl::OkStatus();
      // The read ended at this sample; later samples were not read.
      const ErrorDetail detail = *GetErrorDetail(status);
      ++outcome_.samples;
      outcome_.damaged.push_back({samples[whole].sample, detail.row, detail.layer, std::string(status.message())});
      samples.remove_prefix(whole + 1);
    }
    return absl::OkStatus();
  }

  // The index of the sample whose bytes made a read fail; out of range if the read failed for another reason.
  static size_t DamagedIndex(const absl::Status& status, absl::Span<const SampleState> samples) {
    const auto detail = GetErrorDetail(status);
    if (!absl::IsDataLoss(status) || !detail || detail->reason != Reason::kChecksum) return samples.size() + 1;
    const auto found = std::find_if(samples.begin(), samples.end(),
                                    [&](const SampleState& state) { return state.sample == detail->sample; });
    return found == samples.end() ? samples.size() + 1 : static_cast<size_t>(found - samples.begin());
  }

  absl::Status Judge(const SampleState& state, const CountingSink& sink, size_t index) {
    const SampleRecord& record = sink.records[index];
    RR_RETURN_IF_ERROR(CheckAnswered(record, state.sample));
    if (record.status == SampleStatus::kNotFound) return absl::OkStatus();  // The sample was released meanwhile.
    ++outcome_.samples;
    outcome_.rows += sink.rows[index];
    if (record.status == SampleStatus::kLost)
      outcome_.damaged.push_back({.sample = state.sample, .what = record.message});
    return absl::OkStatus();
  }

  Run& run_;
  const VerifyOptions& options_;
  VerifyOutcome outcome_;
};

}  // namespace

absl::StatusOr<VerifyOutcome> VerifyRun(Run& run, const VerifyOptions& options) {
  return Verifier(run, options).Verify();
}

absl::StatusOr<VerifyOutcome> VerifyExportedRun(const std::filesystem::path& directory, const VerifyOptions& options) {
  RR_ASSIGN_OR_RETURN(const auto exported, ReadExportedRun(directory));
  std::vector<const ExportedSample*> samples;
  for (const ExportedSample& sample : exported.samples) {
    if (InGroups(options.groups, sample.group)) samples.push_back(&sample);
  }
  std::sort(samples.begin(), samples.end(), [](const auto* a, const auto* b) { return a->sample < b->sample; });
  VerifyOutcome outcome;
  for (const ExportedSample* sample : samples) {
    ++outcome.samples;
    outcome.bytes += sample->file_bytes;
    const absl::Status status = ReadExportedIds(directory, exported.geometry, *sample).status();
    if (status.ok()) {
      outcome.rows += sample->recorded_rows();
    } else {
      outcome.damaged.push_back({.sample = sample->sample, .what = std::string(status.message())});
    }
  }
  return outcome;
}

}  // namespace routing_replay
