// Lets the ranks of a model replica agree over NCCL on what to do with the samples of a step.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/agreement.h"

using namespace routing_replay::trainer;

namespace {

absl::Status CudaStatus(cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("CUDA: ", cudaGetErrorString(error)));
}

absl::Status NcclStatus(ncclResult_t result) {
  if (result == ncclSuccess) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("NCCL: ", ncclGetErrorString(result)));
}

// Replaces each word by its maximum over all ranks.
absl::Status Reduce(std::vector<int64_t>& words, ncclComm_t ranks, cudaStream_t stream) {
  const size_t bytes = words.size() * sizeof(int64_t);
  void* device = nullptr;
  if (absl::Status status = CudaStatus(cudaMallocAsync(&device, bytes, stream)); !status.ok()) return status;
  const absl::Cleanup release = [&] { cudaFreeAsync(device, stream); };
  absl::Status status = CudaStatus(cudaMemcpyAsync(device, words.data(), bytes, cudaMemcpyHostToDevice, stream));
  status.Update(NcclStatus(ncclAllReduce(device, device, words.size(), ncclInt64, ncclMax, ranks, stream)));
  status.Update(CudaStatus(cudaMemcpyAsync(words.data(), device, bytes, cudaMemcpyDeviceToHost, stream)));
  status.Update(CudaStatus(cudaStreamSynchronize(stream)));
  return status;
}

}  // namespace

// All ranks of `ranks` must call this once per step. `step` is this rank's report, or the error why it has none.
absl::StatusOr<StepDecision> AgreeOverNccl(absl::StatusOr<StepReport> step, int32_t rank, ncclComm_t ranks,
                                           cudaStream_t stream) {
  StepAgreement agreement(rank, std::move(step));
  while (!agreement.words().empty()) {
    std::vector<int64_t> words(agreement.words().begin(), agreement.words().end());
    if (absl::Status status = Reduce(words, ranks, stream); !status.ok()) return status;
    if (absl::Status status = agreement.Push(words); !status.ok()) return status;
  }
  return agreement.decision();
}
