#include "server/store/sample/stored_block.h"

#include "server/store/sample/row_pieces.h"

namespace routing_replay {
namespace {

// The allocator's share: headers of the block, its bytes, its CRC list and the growing piece list.
constexpr int64_t kAllocationOverhead = 128;

class ResidentBlock final : public StoredBlock {
 public:
  ResidentBlock(Block block, int64_t cost) : StoredBlock(block.rows, block.codec, cost), block_(std::move(block)) {}

  absl::StatusOr<LoadedBlock> Load() const override { return LoadedBlock{shared_from_this(), block_.view()}; }

 private:
  const Block block_;
};

}  // namespace

int64_t MemoryHome::Cost(const Geometry& geometry, int64_t rows, Codec codec) const {
  const int64_t crc_bytes = static_cast<int64_t>(sizeof(uint32_t)) * geometry.num_moe_layers();
  return geometry.block_bytes(rows, codec) + crc_bytes + kAllocationOverhead +
         static_cast<int64_t>(sizeof(ResidentBlock) + sizeof(RowPiece));
}

std::shared_ptr<StoredBlock> MemoryHome::Keep(Block block, int64_t cost) {
  return std::make_shared<ResidentBlock>(std::move(block), cost);
}

}  // namespace routing_replay
