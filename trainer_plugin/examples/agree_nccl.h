#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "routing_replay/trainer/agreement.h"

// Called by all ranks of `ranks`, once per step; `step` is what this rank has seen of it, or why it cannot say.
absl::StatusOr<routing_replay::trainer::StepDecision> AgreeOverNccl(
    absl::StatusOr<routing_replay::trainer::StepReport> step, int32_t rank, ncclComm_t ranks, cudaStream_t stream);
