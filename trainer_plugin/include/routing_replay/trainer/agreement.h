// What all ranks of a model replica do with the samples of a step: replay, live or drop. Layers would mix if they did
// not decide alike, and a content that differs between them would replay two rollouts as one.
//
// An agreement does no I/O: it gives words of int64, whose maxima over all ranks come back, in at most two rounds. The
// first has a fixed size in every version, and tells ranks of other numbers of samples before any vector depends on
// that number.
//
//   while (!agreement.words().empty()) { reduced = words, maxima over all ranks; status = agreement.Push(reduced); }
//
// One rule: every rank takes part once per step, whatever it has seen. A rank whose source failed says so
// (source_failed) instead of staying away, and one that cannot even say what it has seen gives the error in its place,
// so that nobody waits for a rank until the deadline. All ranks then have the same decision or the same error; only a
// rank that gave an error has that one.
#ifndef ROUTING_REPLAY_TRAINER_AGREEMENT_H_
#define ROUTING_REPLAY_TRAINER_AGREEMENT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/source.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay::trainer {

// What a rank has seen of one sample. What is not set is not known, and so not compared.
struct SampleReport {
  std::string sample;
  int64_t handle = 0;                       // SampleHandle of its id; used where sample is empty.
  SampleStatus status = SampleStatus::kOk;  // kUnspecified of a rank whose source failed alone.
  std::optional<int64_t> num_tokens;
  std::optional<int64_t> revision;
  std::optional<uint64_t> content_id;
  std::optional<int64_t> oldest_weight_version;  // kUnknownWeightVersion where rows are of an unknown one.
  std::optional<int64_t> newest_weight_version;
};

// What a rank has seen of a step.
struct StepReport {
  MissingPolicy policy = MissingPolicy::kStrict;
  uint64_t geometry_fingerprint = 0;  // Of the run's geometry; 0 on all ranks where it is not known.
  bool source_failed = false;         // This rank misses all samples, whatever is said of them.
  std::vector<SampleReport> samples;  // Of the step, in the same order on all ranks.
};

enum class StepAction : uint8_t { kReplay = 0, kLive = 1, kDrop = 2 };

// Of one sample, the same on all ranks.
struct SampleDecision {
  StepAction action = StepAction::kReplay;
  SampleStatus status = SampleStatus::kOk;  // The worst that a rank has seen; kUnspecified: its source failed.
  std::optional<int64_t> missing_on;        // The first rank that misses it.
  bool missing_everywhere = false;
  // Of the ranks that have it.
  std::optional<int64_t> num_tokens;
  std::optional<int64_t> revision;
  std::optional<uint64_t> content_id;
  std::optional<int64_t> oldest_weight_version;
  std::optional<int64_t> newest_weight_version;
  friend bool operator==(const SampleDecision&, const SampleDecision&) = default;
};

struct StepDecision {
  std::vector<SampleDecision> samples;
  std::map<SampleStatus, int64_t> counts;  // Samples by status.
  int64_t replayed = 0;
  int64_t fallen_back = 0;                  // Live or dropped.
  std::optional<int64_t> source_failed_on;  // The first rank whose source failed.
  friend bool operator==(const StepDecision&, const StepDecision&) = default;
};

// One rank's part of the agreement.
class StepAgreement {
 public:
  // Never fails: that there is no step all ranks learn in the first round, and Push says why.
  StepAgreement(int32_t rank, absl::StatusOr<StepReport> step);

  // Of the next round; empty once decided or failed.
  absl::Span<const int64_t> words() const { return words_; }
  // Errors end it. FAILED_PRECONDITION, on all ranks: kVersionMismatch for ranks that run another version of this;
  // kGeometryMismatch; kField for ranks of another policy, number or order of samples, and for a rank that could not
  // take part; naming the sample and both values, kRowCount, kOldRevision or kConflictingRows where those that have it
  // have another num_tokens, revision or content_id; and under kStrict, naming sample, status and rank, the reason of
  // the status for the first sample that a rank misses. On this rank alone: the error that stands for its step;
  // INVALID_ARGUMENT (kLength) for another number of words, after which it goes on; FAILED_PRECONDITION (kField) after
  // the end.
  absl::Status Push(absl::Span<const int64_t> reduced);
  // FAILED_PRECONDITION (kField) before the last round, and where a round failed.
  absl::StatusOr<StepDecision> decision() const;

 private:
  absl::Status PushStep(absl::Span<const int64_t> reduced);
  absl::Status PushSamples(absl::Span<const int64_t> reduced);

  const int32_t rank_;
  StepReport step_;
  absl::Status invalid_;
  bool samples_round_ = false;
  bool decided_ = false;
  std::vector<int64_t> words_;
  StepDecision decision_;
};

// The name of a status as agreements tell it: SampleStatusName, and SOURCE_FAILED for kUnspecified.
const char* ReportedStatusName(SampleStatus status);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_AGREEMENT_H_
