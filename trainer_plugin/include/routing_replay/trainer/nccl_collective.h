// A Collective on NCCL: GPUs of the ranks of a model replica.
//
// NCCL is not linked but taken from the process: the library that the host has loaded (torch brings its own), else the
// installed libnccl.so.2. UNAVAILABLE where there is none, or one before 2.14.
//
// A call copies its few values or bytes to the GPU of the communicator and back on the given stream, and waits for
// them. What fails, a rank that does not come within the deadline among it, ends the communicator by ncclCommAbort; one
// that never failed is finalized and destroyed, or aborted where that takes longer than two seconds. The
// deadline is for ranks that do not come, not for what else the stream waits for: give it a stream of its own. NCCL
// itself may wait without an end where ranks launch the kernels of two communicators in other orders: call from the
// thread that launches the model's, at the same place on all ranks.
#ifndef ROUTING_REPLAY_TRAINER_NCCL_COLLECTIVE_H_
#define ROUTING_REPLAY_TRAINER_NCCL_COLLECTIVE_H_

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "routing_replay/trainer/collective.h"

struct ncclComm;
struct CUstream_st;

namespace routing_replay::trainer {

// Takes `communicator` (ncclComm_t) over: it is destroyed with the collective, and by it alone. Where it was made with
// ncclConfig_t::blocking = 1, neither NCCL's own set-up in its first call nor its ncclCommFinalize has a deadline.
// `stream` (cudaStream_t) is of its device and outlives the collective. INVALID_ARGUMENT for none, INTERNAL with NCCL's
// words.
absl::StatusOr<std::unique_ptr<Collective>> MakeNcclCollective(::ncclComm* communicator, ::CUstream_st* stream);

// A communicator for this alone: one rank makes an id and sends it to all by whatever the host has, and then all of
// them join within the deadline, on the current device. DEADLINE_EXCEEDED, INVALID_ARGUMENT for a rank that is not in
// 0 … size - 1.
using NcclId = std::array<char, 128>;  // ncclUniqueId
absl::StatusOr<NcclId> NewNcclId();
absl::StatusOr<std::unique_ptr<Collective>> JoinNcclCollective(const NcclId& id, int32_t rank, int32_t size,
                                                               ::CUstream_st* stream, Collective::Deadline deadline);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_NCCL_COLLECTIVE_H_
