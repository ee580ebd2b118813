#include "trainer_plugin/collective/nccl/nccl_api.h"

#include <dlfcn.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::trainer {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";
constexpr int kOldest = NCCL_VERSION(2, 14, 0);  // The first with ncclCommInitRankConfig and ncclCommFinalize.

// dlerror's words.
absl::Status Unavailable() { return absl::UnavailableError(absl::StrCat("nccl: ", dlerror())); }

template <typename Function>
void Find(void* library, const char* name, Function*& function, absl::Status& status) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function == nullptr) status.Update(Unavailable());
}

absl::StatusOr<const NcclApi*> Load() {
  // A second copy beside the host's would not know its communicators.
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Unavailable();
  static NcclApi api;
  absl::Status status;
  Find(library, "ncclGetVersion", api.get_version, status);
  Find(library, "ncclGetUniqueId", api.get_unique_id, status);
  Find(library, "ncclCommInitRankConfig", api.comm_init_rank_config, status);
  Find(library, "ncclCommFinalize", api.comm_finalize, status);
  Find(library, "ncclCommDestroy", api.comm_destroy, status);
  Find(library, "ncclCommAbort", api.comm_abort, status);
  Find(library, "ncclCommGetAsyncError", api.comm_get_async_error, status);
  Find(library, "ncclCommCount", api.comm_count, status);
  Find(library, "ncclCommUserRank", api.comm_user_rank, status);
  Find(library, "ncclCommCuDevice", api.comm_cu_device, status);
  Find(library, "ncclAllReduce", api.all_reduce, status);
  Find(library, "ncclAllGather", api.all_gather, status);
  Find(library, "ncclGetErrorString", api.get_error_string, status);
  if (!status.ok()) return status;
  int version = 0;
  if (api.get_version(&version) != ncclSuccess || version < kOldest) {
    return absl::UnavailableError(absl::StrCat("nccl: version ", version, " is before ", kOldest));
  }
  return &api;
}

}  // namespace

absl::StatusOr<const NcclApi*> NcclApi::Get() {
  static const auto* const loaded = new absl::StatusOr<const NcclApi*>(Load());
  return *loaded;
}

}  // namespace routing_replay::trainer
