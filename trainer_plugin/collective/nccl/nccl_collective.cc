#include "routing_replay/trainer/nccl_collective.h"

#include <cuda_runtime_api.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "trainer_plugin/collective/nccl/nccl_api.h"

namespace routing_replay::trainer {

inline absl::Status Cuda(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("nccl: ", call, ": ", cudaGetErrorString(error)));
}

// Makes a device the current one while it lives.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    if (cudaGetDevice(&before_) == cudaSuccess && before_ != device) cudaSetDevice(device);
  }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

class Event {
 public:
  Event() = default;
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Once, on the current device.
  absl::Status Create() { return Cuda("cudaEventCreate", cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Memory that grows and loses its content then. `Allocate` and `Free` are functions of the runtime.
template <cudaError_t (*Allocate)(void**, size_t), cudaError_t (*Free)(void*)>
class GrowingMemory {
 public:
  GrowingMemory() = default;
  ~GrowingMemory() { Clear(); }
  GrowingMemory(const GrowingMemory&) = delete;
  GrowingMemory& operator=(const GrowingMemory&) = delete;

  absl::Status Reserve(size_t size) {
    if (size <= size_) return absl::OkStatus();
    Clear();
    absl::Status status = Cuda("memory", Allocate(&data_, size));
    if (status.ok()) size_ = size;
    return status;
  }
  uint8_t* data() { return static_cast<uint8_t*>(data_); }

 private:
  void Clear() {
    if (data_ != nullptr) Free(data_);
    data_ = nullptr;
    size_ = 0;
  }

  void* data_ = nullptr;
  size_t size_ = 0;
};

using DeviceMemory = GrowingMemory<&cudaMalloc, &cudaFree>;
using PinnedMemory = GrowingMemory<&cudaMallocHost, &cudaFreeHost>;

namespace {

static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));
constexpr auto kPause = std::chrono::microseconds(20);  // Between two looks at what is under way.
constexpr auto kFarewell = std::chrono::seconds(2);     // For the other ranks to end what they still do with this one.

absl::Status Of(const NcclApi& api, const char* call, ncclResult_t result) {
  if (result == ncclSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("nccl: ", call, ": ", api.get_error_string(result)));
}

absl::Status Late(const char* call) {
  return absl::DeadlineExceededError(absl::StrCat("collective: ", call, " had not ended in time: a rank did not come"));
}

// Waits for what a communicator with blocking = 0 began.
absl::Status Settle(const NcclApi& api, ncclComm_t communicator, const char* call, ncclResult_t result,
                    Collective::Deadline deadline) {
  while (result == ncclInProgress) {
    if (std::chrono::steady_clock::now() >= deadline) return Late(call);
    std::this_thread::sleep_for(kPause);
    const ncclResult_t asked = api.comm_get_async_error(communicator, &result);
    if (asked != ncclSuccess) return Of(api, "ncclCommGetAsyncError", asked);
  }
  return Of(api, call, result);
}

class NcclCollective final : public Collective {
 public:
  NcclCollective(const NcclApi& api, ncclComm_t communicator, cudaStream_t stream)
      : api_(api), communicator_(communicator), stream_(stream) {}
  ~NcclCollective() override { Close(); }

  // Before anything else.
  absl::Status Open() {
    absl::Status status = Of(api_, "ncclCommCount", api_.comm_count(communicator_, &size_));
    status.Update(Of(api_, "ncclCommUserRank", api_.comm_user_rank(communicator_, &rank_)));
    status.Update(Of(api_, "ncclCommCuDevice", api_.comm_cu_device(communicator_, &device_)));
    if (!status.ok()) return status;
    const OnDevice here(device_);
    return done_.Create();
  }

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return size_; }

 private:
  absl::Status ReduceMax(absl::Span<int64_t> values, Deadline deadline) override {
    const size_t bytes = values.size() * sizeof(int64_t);
    return Run({reinterpret_cast<const uint8_t*>(values.data()), bytes},
               {reinterpret_cast<uint8_t*>(values.data()), bytes}, "ncclAllReduce", deadline,
               [&](const void* from, void* to) {
                 return api_.all_reduce(from, to, values.size(), ncclInt64, ncclMax, communicator_, stream_);
               });
  }

  absl::StatusOr<std::vector<uint8_t>> Gather(absl::Span<const uint8_t> bytes, Deadline deadline) override {
    std::vector<uint8_t> gathered(bytes.size() * size_);
    const absl::Status status =
        Run(bytes, absl::MakeSpan(gathered), "ncclAllGather", deadline, [&](const void* from, void* to) {
          return api_.all_gather(from, to, bytes.size(), ncclUint8, communicator_, stream_);
        });
    if (!status.ok()) return status;
    return gathered;
  }

  using Launch = std::function<ncclResult_t(const void* from, void* to)>;

  absl::Status Run(absl::Span<const uint8_t> from, absl::Span<uint8_t> to, const char* call, Deadline deadline,
                   const Launch& launch) {
    if (to.empty()) return absl::OkStatus();
    const OnDevice here(device_);
    absl::Status status = Exchange(from, to, call, deadline, launch);
    if (!status.ok()) Abort();
    return status;
  }

  absl::Status Exchange(absl::Span<const uint8_t> from, absl::Span<uint8_t> to, const char* call, Deadline deadline,
                        const Launch& launch) {
    absl::Status status = host_.Reserve(std::max(from.size(), to.size()));
    status.Update(from_.Reserve(from.size()));
    status.Update(to_.Reserve(to.size()));
    if (!status.ok()) return status;
    std::memcpy(host_.data(), from.data(), from.size());
    status = Cuda("cudaMemcpyAsync",
                  cudaMemcpyAsync(from_.data(), host_.data(), from.size(), cudaMemcpyHostToDevice, stream_));
    if (status.ok()) status = Settle(api_, communicator_, call, launch(from_.data(), to_.data()), deadline);
    if (!status.ok()) return status;
    status =
        Cuda("cudaMemcpyAsync", cudaMemcpyAsync(host_.data(), to_.data(), to.size(), cudaMemcpyDeviceToHost, stream_));
    status.Update(Cuda("cudaEventRecord", cudaEventRecord(done_.get(), stream_)));
    if (status.ok()) status = Wait(call, deadline);
    if (status.ok()) std::memcpy(to.data(), host_.data(), to.size());
    return status;
  }

  absl::Status Wait(const char* call, Deadline deadline) {
    while (true) {
      const cudaError_t state = cudaEventQuery(done_.get());
      if (state != cudaErrorNotReady) return Cuda("cudaEventQuery", state);
      ncclResult_t result = ncclSuccess;
      absl::Status status = Of(api_, "ncclCommGetAsyncError", api_.comm_get_async_error(communicator_, &result));
      if (result != ncclInProgress) status.Update(Of(api_, call, result));
      if (!status.ok()) return status;
      if (std::chrono::steady_clock::now() >= deadline) return Late(call);
      std::this_thread::sleep_for(kPause);
    }
  }

  // An abort would take this rank's part of the last call from ranks that are still in it.
  void Close() {
    if (communicator_ == nullptr) return;
    const OnDevice here(device_);
    const auto deadline = std::chrono::steady_clock::now() + kFarewell;
    constexpr const char* kCall = "ncclCommFinalize";
    if (!Settle(api_, communicator_, kCall, api_.comm_finalize(communicator_), deadline).ok()) return Abort();
    api_.comm_destroy(std::exchange(communicator_, nullptr));
  }

  // After a failure: it waits for no other rank.
  void Abort() {
    if (communicator_ != nullptr) api_.comm_abort(std::exchange(communicator_, nullptr));
  }

  const NcclApi& api_;
  ncclComm_t communicator_;
  const cudaStream_t stream_;
  int rank_ = 0, size_ = 1, device_ = 0;
  Event done_;
  PinnedMemory host_;
  DeviceMemory from_, to_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Collective>> MakeNcclCollective(::ncclComm* communicator, ::CUstream_st* stream) {
  if (communicator == nullptr) return absl::InvalidArgumentError("nccl: the communicator is null");
  const auto api = NcclApi::Get();
  if (!api.ok()) return api.status();
  auto collective = std::make_unique<NcclCollective>(**api, communicator, stream);
  if (absl::Status status = collective->Open(); !status.ok()) return status;
  return collective;
}

absl::StatusOr<NcclId> NewNcclId() {
  const auto api = NcclApi::Get();
  if (!api.ok()) return api.status();
  ncclUniqueId made;
  if (absl::Status status = Of(**api, "ncclGetUniqueId", (*api)->get_unique_id(&made)); !status.ok()) return status;
  NcclId id;
  std::memcpy(id.data(), &made, id.size());
  return id;
}

absl::StatusOr<std::unique_ptr<Collective>> JoinNcclCollective(const NcclId& id, int32_t rank, int32_t size,
                                                               ::CUstream_st* stream, Collective::Deadline deadline) {
  if (rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(absl::StrCat("nccl: rank ", rank, " is not in 0 … ", size - 1));
  }
  const auto api = NcclApi::Get();
  if (!api.ok()) return api.status();
  ncclUniqueId unique;
  std::memcpy(&unique, id.data(), id.size());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t communicator = nullptr;
  constexpr const char* kCall = "ncclCommInitRankConfig";
  const ncclResult_t begun = (*api)->comm_init_rank_config(&communicator, size, unique, rank, &config);
  const absl::Status status = Settle(**api, communicator, kCall, begun, deadline);
  if (status.ok()) return MakeNcclCollective(communicator, stream);
  if (communicator != nullptr) (*api)->comm_abort(communicator);
  return status;
}

}  // namespace routing_replay::trainer
