#include "server/store/sample/stored_block.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "server/store/sample/row_pieces.h"

namespace routing_replay::server {
namespace {

// The allocator's share: headers of the block, its bytes, its CRC list and the growing piece list.
constexpr int64_t kAllocationOverhead = 128;

class ResidentBlock final : public StoredBlock {
 public:
  ResidentBlock(std::shared_ptr<BlockHome> home, Block block, int64_t cost)
      : StoredBlock(std::move(home), block.rows, block.codec, cost), block_(std::move(block)) {}

 private:
  absl::StatusOr<LoadedBlock> LoadBytes() const override { return LoadedBlock{nullptr, block_.view()}; }

  const Block block_;
};

// A block of a few rows: its bytes and CRCs copied side by side, where the allocations of a Block would take as much
// again.
class SmallBlock final : public StoredBlock {
 public:
  SmallBlock(std::shared_ptr<BlockHome> home, const Block& block, int64_t cost)
      : StoredBlock(std::move(home), block.rows, block.codec, cost),
        planes_(static_cast<uint32_t>(block.plane_crc32c.size())),
        bytes_(static_cast<uint32_t>(block.bytes.size())),
        data_(std::make_unique<uint32_t[]>(planes_ + (bytes_ + sizeof(uint32_t) - 1) / sizeof(uint32_t))) {
    std::copy(block.plane_crc32c.begin(), block.plane_crc32c.end(), data_.get());
    if (bytes_ > 0) std::memcpy(data_.get() + planes_, block.bytes.data(), bytes_);
  }

 private:
  absl::StatusOr<LoadedBlock> LoadBytes() const override {
    const BlockView view{
        rows(), codec(), {data_.get(), planes_}, {reinterpret_cast<const uint8_t*>(data_.get() + planes_), bytes_}};
    return LoadedBlock{nullptr, view};
  }

  const uint32_t planes_;
  const uint32_t bytes_;
  const std::unique_ptr<uint32_t[]> data_;  // CRCs, then the bytes.
};

}  // namespace

void StoredBlock::Charge(ByteReservation& pool) {
  home_->usage()->stored_bytes += pool.Split(cost_).Detach();
  charged_ = true;
}

ByteReservation StoredBlock::Uncharge() {
  if (!std::exchange(charged_, false)) return {};
  RunUsage& usage = *home_->usage();
  usage.stored_bytes -= cost_;
  return usage.budget.Attach(cost_);
}

ByteReservation StoredBlock::ShrinkTo(int64_t cost) {
  const int64_t less = std::exchange(cost_, cost) - cost;
  if (!charged_) return {};
  RunUsage& usage = *home_->usage();
  usage.stored_bytes -= less;
  return usage.budget.Attach(less);
}

int64_t MemoryHome::CostOf(const Geometry& geometry, int64_t rows, Codec codec) {
  const int64_t crc_bytes = static_cast<int64_t>(sizeof(uint32_t)) * geometry.num_moe_layers();
  return geometry.block_bytes(rows, codec) + crc_bytes + kAllocationOverhead +
         static_cast<int64_t>(sizeof(ResidentBlock) + sizeof(RowPiece));
}

std::shared_ptr<StoredBlock> MemoryHome::Keep(Block block, int64_t cost) {
  if (block.bytes.size() <= kSmallBytes) return std::make_shared<SmallBlock>(shared_from_this(), block, cost);
  return std::make_shared<ResidentBlock>(shared_from_this(), std::move(block), cost);
}

}  // namespace routing_replay::server
