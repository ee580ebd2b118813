// Agreement of all ranks of a model replica on the samples of a step: replay, live or drop. Otherwise some layers of a
// sample would replay and others would not, and if its content differed between ranks, two rollouts would be mixed.
//
// An agreement does no I/O. It produces words of int64 and needs their maxima over all ranks back, in at most two
// rounds. The first round has the same size in every version, and detects ranks with other numbers of samples before
// any vector depends on that number.
//
//   while (!agreement.words().empty()) { reduced = words, maxima over all ranks; status = agreement.Push(reduced); }
//
// Every rank takes part once per step, whatever it has seen. A rank whose source failed reports that (source_failed); a
// rank without even a report passes its error instead. So nobody waits for a rank until the deadline. Then all ranks
// have the same decision or the same error; only a rank that passed an error gets that error back.
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

// What a rank knows of one sample. Fields that are not set are unknown and are not compared.
struct SampleReport {
  std::string sample;
  int64_t handle = 0;                       // SampleHandle of its id; used if sample is empty.
  SampleStatus status = SampleStatus::kOk;  // kUnspecified if the source of this rank alone failed.
  std::optional<int64_t> num_tokens;
  std::optional<int64_t> revision;
  std::optional<uint64_t> content_id;
  std::optional<int64_t> oldest_weight_version;  // kUnknownWeightVersion if some rows have an unknown one.
  std::optional<int64_t> newest_weight_version;
};

// What a rank knows of a step.
struct StepReport {
  MissingPolicy policy = MissingPolicy::kStrict;
  uint64_t geometry_fingerprint = 0;  // Fingerprint of the run's geometry; 0 on all ranks if unknown.
  bool source_failed = false;         // This rank misses all samples, whatever their reports say.
  std::vector<SampleReport> samples;  // The step's samples, in the same order on all ranks.
};

enum class StepAction : uint8_t { kReplay = 0, kLive = 1, kDrop = 2 };

// Decision for one sample, the same on all ranks.
struct SampleDecision {
  StepAction action = StepAction::kReplay;
  SampleStatus status = SampleStatus::kOk;  // The worst status of any rank; kUnspecified: its source failed.
  std::optional<int64_t> missing_on;        // The first rank that misses the sample.
  bool missing_everywhere = false;
  // From the ranks that have it.
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
  // Never fails: if `step` is an error, all ranks learn in the first round that this rank has no step, and Push returns
  // why.
  StepAgreement(int32_t rank, absl::StatusOr<StepReport> step);

  // Words of the next round; empty once decided or failed.
  absl::Span<const int64_t> words() const { return words_; }
  // An error ends the agreement. On all ranks FAILED_PRECONDITION: kVersionMismatch if ranks run other versions of this
  // protocol; kGeometryMismatch; kField if ranks have another policy, number or order of samples, or if a rank cannot
  // take part; kRowCount, kOldRevision or kConflictingRows, naming the sample and both values, if ranks have another
  // num_tokens, revision or content_id; under kStrict, for the first sample that a rank misses, the reason of its
  // status, naming sample, status and rank. On this rank alone: the error that it passed as its step; INVALID_ARGUMENT
  // (kLength) for another number of words, after which the agreement goes on; FAILED_PRECONDITION (kField) after the
  // end.
  absl::Status Push(absl::Span<const int64_t> reduced);
  // FAILED_PRECONDITION (kField) before the last round, and if a round failed.
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

// The name of a status in agreements: SampleStatusName, or SOURCE_FAILED for kUnspecified.
const char* ReportedStatusName(SampleStatus status);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_AGREEMENT_H_
