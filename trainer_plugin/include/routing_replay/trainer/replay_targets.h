// Where the ids of every router are while a schedule runs: by (step, micro-batch, virtual stage, layer), in no order.
//
// Megatron's RouterReplay keeps one target and one FIFO per router; what a pass leaves behind or takes twice shifts all
// that follow. Here each key has one entry, whatever passes come between: forward and recompute read the same one, and
// what is not there is an error. Pure bookkeeping: an entry names an index buffer of the caller's and a slot in it.
#ifndef ROUTING_REPLAY_TRAINER_REPLAY_TARGETS_H_
#define ROUTING_REPLAY_TRAINER_REPLAY_TARGETS_H_

#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace routing_replay::trainer {

// A micro-batch in a chunk of the rank.
struct PassKey {
  // Which call of the schedule (forward_backward_func); calls that are forward-only have numbers of their own.
  int64_t step = 0;
  int32_t micro_batch = 0;  // (current_microbatch)
  int32_t chunk = 0;        // (vp_stage), 0 without virtual stages.
  friend auto operator<=>(const PassKey&, const PassKey&) = default;
};
// "step 3, micro-batch 2, virtual stage 1"
std::string ToString(const PassKey& key);

struct TargetKey {
  PassKey pass;
  // Global decoder layer id: Megatron's layer_number - 1. Routers of MTP layers count from 1 again and have no targets.
  int32_t layer_id = 0;
};
std::string ToString(const TargetKey& key);

struct Target {
  int64_t buffer = 0;  // As given to Add.
  int32_t slot = 0;    // Of BufferLayout.
  friend bool operator==(const Target&, const Target&) = default;
};

enum class PassUse : uint8_t {
  kTraining = 0,     // A forward pass, then a backward pass with or without recompute.
  kForwardOnly = 1,  // A forward pass alone: each entry goes when its router has read it, and nothing is left behind.
};

// Replaying passes read ids from their target. Recording passes write them there in forward, and recompute reads them.
// Thread-safe: the autograd engine recomputes on threads of its own while further micro-batches are added.
class ReplayTargets {
 public:
  ReplayTargets();
  ~ReplayTargets();
  ReplayTargets(ReplayTargets&&) noexcept;
  ReplayTargets& operator=(ReplayTargets&&) noexcept;

  // The MoE layers of the chunk, at slots first_slot, first_slot + 1, … of a buffer that is not written to otherwise
  // until the pass is finished. ALREADY_EXISTS if the pass has entries; INVALID_ARGUMENT (kField) for numbers below 0,
  // slots that no buffer has, and a layer that stands twice. Errors of this class name the key and have field "targets"
  // and, where one is concerned, the layer.
  absl::Status Add(const PassKey& pass, PassUse use, absl::Span<const int32_t> layer_ids, int64_t buffer,
                   int32_t first_slot = 0);

  // The entry, for the one router call that each layer makes in the forward pass. NOT_FOUND if there is none.
  // FAILED_PRECONDITION (NOT_FOUND in a forward-only pass) if the layer was asked for before: a router that runs
  // several times in a micro-batch (mlp_chunks_for_training, mtp_use_repeated_layer) would take all rows for some.
  absl::StatusOr<Target> Forward(const TargetKey& key);

  // The same entry, as often as the backward pass asks for it. NOT_FOUND if there is none (any more), and
  // FAILED_PRECONDITION before the forward pass.
  absl::StatusOr<Target> Recompute(const TargetKey& key) const;

  // After the forward pass: nothing of a forward-only pass is left. FAILED_PRECONDITION, all entries of the pass being
  // gone, if a router never asked for its layer: it did not replay. OK for a pass that has no entries.
  absl::Status EndForward(const PassKey& pass);

  // After the backward pass: the entries go, and the buffer is free. Not needed after a forward pass alone. NOT_FOUND
  // if there are none. FAILED_PRECONDITION, the entries being gone, if a router never asked for its layer: it did not
  // replay.
  absl::Status Finish(const PassKey& pass);

  // After the call of the schedule. FAILED_PRECONDITION naming the first pass that was not finished; all of the step is
  // gone then, too, so that nothing reaches another step.
  absl::Status EndStep(int64_t step);

  // Entries that are there.
  int64_t size() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_REPLAY_TARGETS_H_
