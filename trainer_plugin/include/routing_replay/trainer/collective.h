#ifndef ROUTING_REPLAY_TRAINER_COLLECTIVE_H_
#define ROUTING_REPLAY_TRAINER_COLLECTIVE_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/source.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay::trainer {

// The ranks of a model replica and what they do together.
//
//   NcclCollective (nccl_collective.h)      one ncclComm_t and a stream
//   MakeLocalCollectives                    ranks that are threads of this process
//
// All ranks call the same functions in the same order, with equally many values or bytes. A call that fails is never a
// hang: DEADLINE_EXCEEDED where a rank does not come in time. What the other ranks know of it is then not known here,
// so that the object is of no more use: every later call is FAILED_PRECONDITION and says what happened first.

// One rank's end. Used by one thread at a time.
class Collective {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  virtual ~Collective() = default;
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;

  // Each value becomes the greatest that any rank has in its place. Untouched on failure.
  absl::Status AllReduceMax(absl::Span<int64_t> values, Deadline deadline);
  // What the ranks gave, one after the other: size() · bytes.size() bytes.
  absl::StatusOr<std::vector<uint8_t>> AllGather(absl::Span<const uint8_t> bytes, Deadline deadline);

 protected:
  Collective() = default;

 private:
  virtual absl::Status ReduceMax(absl::Span<int64_t> values, Deadline deadline) = 0;
  virtual absl::StatusOr<std::vector<uint8_t>> Gather(absl::Span<const uint8_t> bytes, Deadline deadline) = 0;

  absl::Status failure_;  // The first one.
};

// Ranks 0 … size - 1 of a group inside this process, each of which a thread of its own may have. They may outlive each
// other. Where one rank fails, those that wait for it fail at once. FAILED_PRECONDITION, on all ranks that wait, if two
// ranks call different functions or with different sizes.
std::vector<std::unique_ptr<Collective>> MakeLocalCollectives(int32_t size);

// AllGather of bytes of which each rank has any number: one entry per rank. Takes a reduction and a gather of the
// longest.
absl::StatusOr<std::vector<std::vector<uint8_t>>> AllGatherAnySize(Collective& collective,
                                                                   absl::Span<const uint8_t> bytes,
                                                                   Collective::Deadline deadline);

// What all ranks of a model replica do with the samples of a step: replay, live or drop. Layers would mix if they did
// not decide alike, and a content that differs between them would replay two rollouts as one.
//
//   auto decision = Agree(*collective, {.policy = MissingPolicy::kLive, .samples = seen}, deadline);
//
// One rule: every rank calls Agree once per step, whatever it has seen. A rank whose source failed says so
// (source_failed) instead of staying away, and one that cannot even say what it has seen gives the error in its place,
// so that nobody waits for a rank until the deadline. All ranks then have the same decision or the same error; only a
// rank that gave an error, or wrong arguments, has that one. This holds as long as the collective works: where it
// fails, ranks have what it says to each of them.
//
// Without I/O it is StepAgreement: words of int64, whose maxima over all ranks come back, in at most two rounds. The
// first has a fixed size in every version, and tells ranks of other numbers of samples before any vector depends on
// that number.

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

// From what a source says of a sample (InspectSamples, Inspect of the other sources, StagedRows::records), which errors
// then name by `sample`, or by `handle` where that is empty.
SampleReport ReportOf(const SampleRecord& record, std::string sample, int64_t handle = 0);

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
  std::optional<int32_t> missing_on;        // The first rank that misses it.
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
  std::optional<int32_t> source_failed_on;  // The first rank whose source failed.
  friend bool operator==(const StepDecision&, const StepDecision&) = default;
};

// One rank's part of the agreement, without I/O:
//
//   while (!agreement.words().empty()) { reduced = words, maxima over all ranks; status = agreement.Push(reduced); }
class StepAgreement {
 public:
  // Never fails: that there is no step, or something wrong with it, all ranks learn in the first round, and Push says
  // what it is.
  StepAgreement(int32_t rank, absl::StatusOr<StepReport> step);

  // Of the next round; empty once decided or failed.
  absl::Span<const int64_t> words() const { return words_; }
  // Errors end it. FAILED_PRECONDITION, on all ranks: kVersionMismatch for ranks that run another version of this;
  // kGeometryMismatch; kField for ranks of another policy, number or order of samples, and for a rank that could not
  // take part; naming the sample and both values, kRowCount, kOldRevision or kConflictingRows where those that have it
  // have another num_tokens, revision or content_id; and under kStrict, naming sample, status and rank, the reason of
  // the status for the first sample that a rank misses. On this rank alone: the error that stands for its step,
  // INVALID_ARGUMENT (kField) for a rank or step that cannot be and for words that no reduction of this rank's gives,
  // and (kLength) for another number of words, after which it goes on; FAILED_PRECONDITION (kField) after the end.
  absl::Status Push(absl::Span<const int64_t> reduced);
  // FAILED_PRECONDITION (kField) before the last round, and where a round failed.
  absl::StatusOr<StepDecision> decision() const;

 private:
  absl::Status PushStep(absl::Span<const int64_t> reduced);
  absl::Status PushSamples(absl::Span<const int64_t> reduced);

  int32_t rank_;
  StepReport step_;
  absl::Status invalid_;
  bool samples_round_ = false;
  bool decided_ = false;
  std::vector<int64_t> words_;
  StepDecision decision_;
};

// All rounds through a collective. Errors as StepAgreement::Push and those of the collective.
absl::StatusOr<StepDecision> Agree(Collective& collective, absl::StatusOr<StepReport> step,
                                   Collective::Deadline deadline);

// The name of a status as agreements tell it: SampleStatusName, and SOURCE_FAILED for kUnspecified.
const char* ReportedStatusName(SampleStatus status);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_COLLECTIVE_H_
