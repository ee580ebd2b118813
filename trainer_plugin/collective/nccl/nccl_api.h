// The functions of NCCL that are used, from whichever library the process has.
#ifndef TRAINER_PLUGIN_COLLECTIVE_NCCL_NCCL_API_H_
#define TRAINER_PLUGIN_COLLECTIVE_NCCL_NCCL_API_H_

#include <nccl.h>

#include "absl/status/statusor.h"

namespace routing_replay::trainer {

struct NcclApi {
  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&::ncclCommFinalize) comm_finalize = nullptr;
  decltype(&::ncclCommDestroy) comm_destroy = nullptr;
  decltype(&::ncclCommAbort) comm_abort = nullptr;
  decltype(&::ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&::ncclCommCount) comm_count = nullptr;
  decltype(&::ncclCommUserRank) comm_user_rank = nullptr;
  decltype(&::ncclCommCuDevice) comm_cu_device = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
  decltype(&::ncclGetErrorString) get_error_string = nullptr;

  // Loaded once; lives for ever. UNAVAILABLE saying what is wrong.
  static absl::StatusOr<const NcclApi*> Get();
};

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_COLLECTIVE_NCCL_NCCL_API_H_
