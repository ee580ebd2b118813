// Blocks as pieces hold them, and where their bytes live.
#ifndef SERVER_STORE_SAMPLE_STORED_BLOCK_H_
#define SERVER_STORE_SAMPLE_STORED_BLOCK_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/wire/block/block.h"
#include "routing_replay/wire/geometry.h"
#include "server/store/sample/stored_charge.h"
#include "server/store/store.h"

namespace routing_replay::server {

class BlockHome;

class StoredBlock : public KeptBlock {
 public:
  // `home`: null of a block that is never charged.
  StoredBlock(std::shared_ptr<BlockHome> home, RowRange rows, Codec codec, int64_t cost)
      : KeptBlock(rows, codec), cost_(cost), home_(std::move(home)) {}
  ~StoredBlock() override { Uncharge(); }

  // Of the memory budget. Only Spill changes it.
  virtual int64_t cost() const { return cost_; }
  // Takes cost() bytes out of `pool`, which is of the home's budget, once pieces show the block.
  void Charge(ByteReservation& pool);
  bool charged() const { return charged_; }
  // Only a sole holder takes the charge away, only to replace the block.
  virtual ByteReservation TakeCharge() { return Uncharge(); }

  // So much of cost() would Spill give back.
  virtual int64_t spillable_bytes() const { return 0; }
  // Moves the bytes to where they take no memory, if the home has such a place. The caller is one that holds the block
  // beside the pieces that show it. RESOURCE_EXHAUSTED if there is no room, UNAVAILABLE for any other failure: they
  // stay where they are.
  virtual absl::Status Spill() { return absl::OkStatus(); }

 protected:
  BlockHome& home() const { return *home_; }
  // cost_ becomes less, and the difference is no longer charged.
  ByteReservation ShrinkTo(int64_t cost);
  // The charge, no longer counted as stored.
  ByteReservation Uncharge();

 private:
  bool charged_ = false;
  int64_t cost_;
  const std::shared_ptr<BlockHome> home_;
};

// Where the blocks of a run live, and what they are charged to. Thread-safe; held by its blocks.
class BlockHome : public std::enable_shared_from_this<BlockHome> {
 public:
  // `usage`: null if nothing is charged for its blocks.
  explicit BlockHome(std::shared_ptr<RunUsage> usage) : usage_(std::move(usage)) {}
  virtual ~BlockHome() = default;

  const std::shared_ptr<RunUsage>& usage() const { return usage_; }

  // StoredBlock::cost of a new block of `rows` rows in `codec`.
  virtual int64_t Cost(const Geometry& geometry, int64_t rows, Codec codec) const = 0;
  // `block`, with this cost, and nothing charged for it yet. Requires that somebody shares the home.
  virtual std::shared_ptr<StoredBlock> Keep(Block block, int64_t cost) = 0;

 private:
  const std::shared_ptr<RunUsage> usage_;
};

// Bytes stay in memory, where they are.
class MemoryHome final : public BlockHome {
 public:
  using BlockHome::BlockHome;

  // Blocks up to so many bytes are copied to where they take least.
  static constexpr size_t kSmallBytes = 4 << 10;

  // Bytes, CRCs and the fixed overhead of keeping them.
  static int64_t CostOf(const Geometry& geometry, int64_t rows, Codec codec);

  int64_t Cost(const Geometry& geometry, int64_t rows, Codec codec) const override {
    return CostOf(geometry, rows, codec);
  }
  std::shared_ptr<StoredBlock> Keep(Block block, int64_t cost) override;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_SAMPLE_STORED_BLOCK_H_
