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
  StoredBlock(RowRange rows, Codec codec, int64_t cost) : KeptBlock(rows, codec), cost_(cost) {}

  // Of the memory budget. Only Spill changes it.
  virtual int64_t cost() const { return cost_; }
  // Takes cost() bytes out of `pool`, once pieces show the block.
  void Charge(ByteReservation& pool, const std::shared_ptr<RunUsage>& usage) {
    charge_ = StoredCharge(pool.Split(cost_), usage);
  }
  bool charged() const { return charge_.bytes() != 0; }
  // Only a sole holder takes the charge away, only to replace the block.
  virtual ByteReservation TakeCharge() { return charge_.Take(); }

  // So much of cost() would Spill give back.
  virtual int64_t spillable_bytes() const { return 0; }
  // Moves the bytes to where they take no memory, if the home has such a place. The caller is one that holds the block
  // beside the pieces that show it. RESOURCE_EXHAUSTED if there is no room, UNAVAILABLE for any other failure: they
  // stay where they are.
  virtual absl::Status Spill() { return absl::OkStatus(); }

 protected:
  int64_t cost_;
  StoredCharge charge_;
};

// Where the blocks of a run live. Thread-safe; outlives the run's samples, but not blocks that readers hold.
class BlockHome {
 public:
  virtual ~BlockHome() = default;

  // StoredBlock::cost of a new block of `rows` rows in `codec`.
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
