#include "tests/bench/store/workload.h"

#include <cstring>
#include <thread>

#include "routing_replay/wire/checksum.h"
#include "tests/generator/prng.h"

namespace routing_replay::bench {
namespace {

constexpr int32_t kLayers = 48, kTopK = 8;
constexpr int64_t kBytes = int64_t{96} << 20, kQuickBytes = int64_t{9} << 20;

}  // namespace

Workload::Workload(int32_t num_experts, bool quick)
    : num_experts_(num_experts),
      geometry_(std::make_shared<const Geometry>(Geometry::Uniform(kLayers, num_experts, kTopK))),
      block_bytes_(geometry_->block_bytes(kDefaultBlockRows, Codec::kRaw)) {
  samples_ = static_cast<int32_t>((quick ? kQuickBytes : kBytes) / (kBlocksPerSample * block_bytes_));
  bytes_ = Buffer(bytes());
  testing::Prng random(1);
  const int32_t id_bytes = geometry_->max_id_bytes();
  const int64_t plane_bytes = geometry_->plane_bytes(0, kDefaultBlockRows, Codec::kRaw);
  uint8_t* out = bytes_.data();
  for (int64_t block = 0; block < samples_ * int64_t{kBlocksPerSample}; ++block) {
    std::vector<uint32_t>& crcs = crcs_.emplace_back();
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const uint8_t* const plane = out;
      for (int64_t row = 0; row < kDefaultBlockRows; ++row) {
        const uint64_t first = random(), step = random() | 1;  // With an odd step all ids of a row differ.
        for (int32_t k = 0; k < kTopK; ++k, out += id_bytes) {
          const auto id = static_cast<uint16_t>((first + k * step) % num_experts);
          std::memcpy(out, &id, id_bytes);
        }
      }
      crcs.push_back(Crc32c({plane, static_cast<size_t>(plane_bytes)}));
    }
  }
}

RowRange Workload::RowsOf(int32_t block) {
  return {block * int64_t{kDefaultBlockRows}, (block + 1) * int64_t{kDefaultBlockRows}};
}

absl::Span<const uint8_t> Workload::Bytes(int32_t sample, int32_t block) const {
  return bytes_.span().subspan((int64_t{sample} * kBlocksPerSample + block) * block_bytes_, block_bytes_);
}

const std::vector<uint32_t>& Workload::Crcs(int32_t sample, int32_t block) const {
  return crcs_[sample * kBlocksPerSample + block];
}

absl::Status Workload::ForEachSample(const std::function<absl::Status(int, int32_t)>& call) const {
  std::vector<absl::Status> statuses(kStoreCallers);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kStoreCallers; ++caller) {
    callers.emplace_back([&, caller] {
      for (int32_t sample = caller; sample < samples_ && statuses[caller].ok(); sample += kStoreCallers) {
        statuses[caller] = call(caller, sample);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace routing_replay::bench
