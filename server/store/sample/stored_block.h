// Blocks as pieces hold them, and where their bytes live.
#ifndef SERVER_STORE_SAMPLE_STORED_BLOCK_H_
#define SERVER_STORE_SAMPLE_STORED_BLOCK_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/wire/block/block.h"
#include "routing_replay/wire/geometry.h"
#include "server/store/kept_block.h"
#include "server/store/sample/stored_charge.h"

namespace routing_replay {

class StoredBlock : public KeptBlock {
 public:
  StoredBlock(RowRange rows, Codec codec, int64_t bytes) : KeptBlock(rows, codec), cost(bytes) {}

  // Of the memory budget.
  const int64_t cost;
  // Of `cost` bytes, once pieces show the block. Only a sole holder takes it away, only to replace the block.
  StoredCharge charge;
};

// Where the blocks of a run live. Thread-safe; outlives the run's samples, but not blocks that readers hold.
class BlockHome {
 public:
  virtual ~BlockHome() = default;

  // StoredBlock::cost of a block of `rows` rows in `codec`.
  virtual int64_t Cost(const Geometry& geometry, int64_t rows, Codec codec) const = 0;
  // `block`, with this cost, and nothing charged for it yet.
  virtual std::shared_ptr<StoredBlock> Keep(Block block, int64_t cost) = 0;
};

// Bytes stay in memory, where they are.
class MemoryHome final : public BlockHome {
 public:
  // Bytes, CRCs and the fixed overhead of keeping them.
  int64_t Cost(const Geometry& geometry, int64_t rows, Codec codec) const override;
  std::shared_ptr<StoredBlock> Keep(Block block, int64_t cost) override;
};

}  // namespace routing_replay

#endif  // SERVER_STORE_SAMPLE_STORED_BLOCK_H_
