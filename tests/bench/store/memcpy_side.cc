#include <cstring>

#include "tests/bench/store/side.h"

namespace routing_replay::bench {
namespace {

class MemcpySide final : public Side {
 public:
  explicit MemcpySide(const Workload& workload) : workload_(workload), pool_(workload.bytes()), outs_(kStoreCallers) {
    std::memset(pool_.data(), 0, pool_.size());
    for (Buffer& out : outs_) out = Buffer(workload.block_bytes());
  }

  absl::Status Begin(int32_t) override { return absl::OkStatus(); }
  absl::Status Append(int32_t) override {
    return ForEachBlock([this](int, int32_t sample, int32_t block) {
      const absl::Span<const uint8_t> bytes = workload_.Bytes(sample, block);
      std::memcpy(Place(sample, block), bytes.data(), bytes.size());
      return absl::OkStatus();
    });
  }
  absl::Status Read() override {
    return ForEachBlock([this](int caller, int32_t sample, int32_t block) {
      std::memcpy(outs_[caller].data(), Place(sample, block), workload_.block_bytes());
      return absl::OkStatus();
    });
  }
  absl::Status Check() override {
    return ForEachBlock([this](int, int32_t sample, int32_t block) {
      const absl::Span<const uint8_t> bytes = workload_.Bytes(sample, block);
      return std::memcmp(Place(sample, block), bytes.data(), bytes.size()) == 0 ? absl::OkStatus()
                                                                                : Differs("memcpy", sample, block);
    });
  }
  absl::Status End() override { return absl::OkStatus(); }

 private:
  uint8_t* Place(int32_t sample, int32_t block) {
    return pool_.data() + (int64_t{sample} * workload_.blocks_per_sample() + block) * workload_.block_bytes();
  }
  template <typename Call>
  absl::Status ForEachBlock(const Call& call) {
    return workload_.ForEachSample([&](int caller, int32_t sample) {
      for (int32_t block = 0; block < workload_.blocks_per_sample(); ++block) {
        if (absl::Status status = call(caller, sample, block); !status.ok()) return status;
      }
      return absl::OkStatus();
    });
  }

  const Workload& workload_;
  Buffer pool_;
  std::vector<Buffer> outs_;  // By caller.
};

}  // namespace

std::unique_ptr<Side> NewMemcpySide(const Workload& workload) { return std::make_unique<MemcpySide>(workload); }

}  // namespace routing_replay::bench
