// The ranks of a model replica and what they do together.
//
//   NcclCollective (nccl_collective.h)      one ncclComm_t and a stream
//   MakeLocalCollectives                    ranks that are threads of this process
//   ComposeCollectives                      several groups as one: [tensor-and-context-parallel, pipeline]
//
// All ranks call the same functions in the same order, with equally many values or bytes. A call that fails is never a
// hang: DEADLINE_EXCEEDED where a rank does not come in time. What the other ranks know of it is then not known here,
// so that the object is of no more use: every later call is FAILED_PRECONDITION and says what happened first.
#ifndef ROUTING_REPLAY_TRAINER_COLLECTIVE_H_
#define ROUTING_REPLAY_TRAINER_COLLECTIVE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace routing_replay::trainer {

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

// The ranks of a grid, of which `groups` are this rank's row, column, …: calls go through one group after the other.
// Its size is the product of theirs, its rank the ranks in them as digits, that in the first group the lowest. At least
// one group; groups of one rank may be left out. After a group has failed this rank calls none of those behind it:
// their other ranks wait for it until the deadline and have DEADLINE_EXCEEDED, not what failed here.
std::unique_ptr<Collective> ComposeCollectives(std::vector<std::unique_ptr<Collective>> groups);

// AllGather of bytes of which each rank has any number: one entry per rank. Takes a reduction and a gather of the
// longest.
absl::StatusOr<std::vector<std::vector<uint8_t>>> AllGatherAnySize(Collective& collective,
                                                                   absl::Span<const uint8_t> bytes,
                                                                   Collective::Deadline deadline);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_COLLECTIVE_H_
