#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "routing_replay/trainer/agreement.h"

// All ranks of `ranks` must call this once per step. `step` is this rank's report, or the error why it has none.
absl::StatusOr<routing_replay::trainer::StepDecision> AgreeOverNccl(
    absl::StatusOr<routing_replay::trainer::StepReport> step, int32_t rank, ncclComm_t ranks, cudaStream_t stream);
