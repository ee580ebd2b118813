// Replay targets.
#include "trainer_plugin/capi/objects.h"

using namespace routing_replay;           // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;     // NOLINT(build/namespaces)
using namespace routing_replay::trainer;  // NOLINT(build/namespaces)

namespace {

PassKey KeyFrom(const rrt_pass& pass) {
  return {.step = pass.step, .micro_batch = pass.micro_batch, .chunk = pass.chunk};
}

absl::Status Give(const absl::StatusOr<Target>& target, int64_t* buffer, int32_t* slot) {
  if (!target.ok()) return target.status();
  *buffer = target->buffer;
  *slot = target->slot;
  return absl::OkStatus();
}

}  // namespace

rrt_error* rrt_replay_targets_new(rrt_replay_targets** targets) {
  return Guard([&] {
    *targets = new rrt_replay_targets;
    return absl::OkStatus();
  });
}

void rrt_replay_targets_free(rrt_replay_targets* targets) { delete targets; }

rrt_error* rrt_replay_targets_add(rrt_replay_targets* targets, const rrt_pass* pass, int32_t forward_only,
                                  const int32_t* layer_ids, size_t layer_count, int64_t buffer) {
  return Guard([&] {
    return targets->targets.Add(KeyFrom(*pass), forward_only != 0 ? PassUse::kForwardOnly : PassUse::kTraining,
                                {layer_ids, layer_count}, buffer);
  });
}

rrt_error* rrt_replay_targets_forward(rrt_replay_targets* targets, const rrt_pass* pass, int32_t layer_id,
                                      int64_t* buffer, int32_t* slot) {
  return Guard([&] { return Give(targets->targets.Forward({KeyFrom(*pass), layer_id}), buffer, slot); });
}

rrt_error* rrt_replay_targets_recompute(const rrt_replay_targets* targets, const rrt_pass* pass, int32_t layer_id,
                                        int64_t* buffer, int32_t* slot) {
  return Guard([&] { return Give(targets->targets.Recompute({KeyFrom(*pass), layer_id}), buffer, slot); });
}

rrt_error* rrt_replay_targets_end_forward(rrt_replay_targets* targets, const rrt_pass* pass) {
  return Guard([&] { return targets->targets.EndForward(KeyFrom(*pass)); });
}

rrt_error* rrt_replay_targets_finish(rrt_replay_targets* targets, const rrt_pass* pass) {
  return Guard([&] { return targets->targets.Finish(KeyFrom(*pass)); });
}

rrt_error* rrt_replay_targets_end_step(rrt_replay_targets* targets, int64_t step) {
  return Guard([&] { return targets->targets.EndStep(step); });
}

int64_t rrt_replay_targets_size(const rrt_replay_targets* targets) {
  return NoThrow([&] { return targets->targets.size(); });
}
