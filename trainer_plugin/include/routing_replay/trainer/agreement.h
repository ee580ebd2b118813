// Lets all ranks of a model replica agree on what to do with each sample of a step: replay it, route it live, or drop
// it. Without agreement, some layers of a sample could replay while others route live, and if ranks had different
// contents of one sample, two rollouts would be mixed.
//
// An agreement does no I/O. In each of at most two rounds it produces a vector of int64 words, and the caller passes
// back their maxima over all ranks. The first vector has the same size in every version. It shows whether all ranks
// have the same number of samples, on which the size of the second vector depends.
//
//   while (!agreement.words().empty()) { reduced = words, maxima over all ranks; status = agreement.Push(reduced); }
//
// Every rank must take part once per step, even after a failure, so that no rank waits for another one until a
// deadline. A rank whose source failed sets source_failed; a rank that has no report at all passes its error instead.
// In the end all ranks have the same decision or the same error. Exception: a rank that passed an error gets its own
// error back.
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
  int64_t handle = 0;                       // SampleHandle of the sample; used if `sample` is empty.
  SampleStatus status = SampleStatus::kOk;  // kUnspecified: this rank's source failed for the sample.
  std::optional<int64_t> num_tokens;
  std::optional<uint64_t> content_id;
  std::optional<int64_t> oldest_weight_version;  // kUnknownWeightVersion if any row has none.
  std::optional<int64_t> newest_weight_version;
};

// What a rank knows of a step.
struct StepReport {
  MissingPolicy policy = MissingPolicy::kStrict;
  uint64_t geometry_fingerprint = 0;  // That of the run's geometry; 0 on all ranks if the geometry is unknown.
  bool source_failed = false;         // Counts as a report that all samples are missing.
  std::vector<SampleReport> samples;  // The step's samples, in the same order on all ranks.
};

enum class StepAction : uint8_t { kReplay = 0, kLive = 1, kDrop = 2 };

// Decision for one sample, the same on all ranks.
struct SampleDecision {
  StepAction action = StepAction::kReplay;
  SampleStatus status = SampleStatus::kOk;  // The worst status of all ranks; kUnspecified: a source failed.
  std::optional<int64_t> missing_on;        // The lowest rank on which the sample is missing.
  // The values on which the ranks that have the sample agree, and the extremes of their weight versions. Not set if no
  // rank knows them.
  std::optional<int64_t> num_tokens;
  std::optional<uint64_t> content_id;
  std::optional<int64_t> oldest_weight_version;
  std::optional<int64_t> newest_weight_version;
  friend bool operator==(const SampleDecision&, const SampleDecision&) = default;
};

struct StepDecision {
  std::vector<SampleDecision> samples;
  std::map<SampleStatus, int64_t> counts;  // Number of samples with each status.
  int64_t replayed = 0;
  int64_t fallen_back = 0;  // Samples that route live or are dropped.
  friend bool operator==(const StepDecision&, const StepDecision&) = default;
};

// One rank's part of the agreement.
class StepAgreement {
 public:
  // Never fails. If `step` is an error, the first round tells all ranks that this rank cannot take part, and Push
  // returns that error here.
  StepAgreement(int32_t rank, absl::StatusOr<StepReport> step);

  // The words of the next round; empty after the decision or an error.
  absl::Span<const int64_t> words() const { return words_; }
  // Takes the maxima of words() over all ranks. An error, except kLength below, ends the agreement.
  //
  // These errors are the same on all ranks, and FAILED_PRECONDITION:
  //   kVersionMismatch if ranks run different versions of this protocol
  //   kGeometryMismatch if ranks have different geometries
  //   kField if ranks differ in policy, in the number of samples or in their order, or if a rank cannot take part
  //   kRowCount if ranks differ in a sample's num_tokens, kConflictingRows if in its content_id; the message names the
  //     sample and both values
  //   under kStrict, the Reason for the status of the first missing sample; the message names sample, status and rank
  //
  // These errors concern this rank alone:
  //   the error that it passed as its step
  //   INVALID_ARGUMENT (kLength) for a wrong number of words, after which Push may be called again
  //   FAILED_PRECONDITION (kField) if the agreement has ended
  absl::Status Push(absl::Span<const int64_t> reduced);
  // FAILED_PRECONDITION (kField) if the last round is not done yet, or if a round failed.
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

// The name of a status in an agreement's results: SOURCE_FAILED for kUnspecified, else SampleStatusName.
const char* ReportedStatusName(SampleStatus status);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_AGREEMENT_H_
