// The recorded rows of one sample: an ascending list of pieces, each a range of rows of a shared block.
//
//   window 0              window 1              window 2 (open)
//   [ one block        ]  [ block ][ block  ]   [ piece ][ piece ]        gaps are unrecorded rows
//
// Blocks are immutable once stored. Several samples (forks) and readers may hold the same block; its bytes go back to
// the budget when nobody holds it any more.
//
// How new rows are added: the change is planned, charged to the budget and merged before the sample is touched, and
// then applied in one step that cannot fail.
//
//   PieceChange change(run, home, pieces, …);                          what to keep, what to merge
//   pay for change.cost() - change.reclaimable_bytes();
//   change.Merge();                                                    the heavy part; may find damage
//   write change.tail(), in a durable store
//   change.Commit(pieces, pool);
//
// Consecutive recorded rows inside one window become one block as soon as their number is final: when the window ends,
// an unrecorded range follows, or the sample is sealed. The block is in the run's codec, or RAW where packing saves
// nothing. So after a seal the blocks are the same however the rows arrived. Until then their pieces are merged in
// growing groups, so that n appends of one row cost n log n and not n squared.
#ifndef SERVER_STORE_ROW_PIECES_H_
#define SERVER_STORE_ROW_PIECES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/block/block.h"
#include "routing_replay/wire/geometry.h"
#include "server/admission/byte_budget.h"
#include "server/store/store.h"

namespace routing_replay::server {

// Running totals of a run. Thread-safe, but a reader may see some totals before a change and others after it.
struct RunUsage {
  // `of` must outlive this object.
  explicit RunUsage(ByteBudget& of) : budget(of) {}

  ByteBudget& budget;  // The budget to which the run's bytes are charged.
  std::atomic<int64_t> samples{0};
  std::atomic<int64_t> sealed_samples{0};
  std::atomic<int64_t> committed_rows{0};
  std::atomic<int64_t> stored_bytes{0};
};

class BlockHome;
class SampleJournal;

class StoredBlock : public KeptBlock {
 public:
  // `home`: null for a block that is never charged.
  StoredBlock(std::shared_ptr<BlockHome> home, RowRange rows, Codec codec, int64_t cost)
      : KeptBlock(rows, codec), cost_(cost), home_(std::move(home)) {}
  ~StoredBlock() override { Uncharge(); }

  // The bytes of the memory budget that this block takes. Only Spill changes the number.
  virtual int64_t cost() const { return cost_; }
  // Charges the block, with cost() bytes of `pool`, a reservation of the home's budget. Call it when a sample gets it.
  void Charge(ByteReservation& pool);
  bool charged() const { return charged_; }
  // Ends the charge of a block that is about to be replaced or removed, and returns it. No one else may hold the block.
  virtual ByteReservation TakeCharge() { return Uncharge(); }

  // The part of cost() that Spill would free.
  virtual int64_t spillable_bytes() const { return 0; }
  // Moves the bytes to the disk, if the home has one. The caller must hold a reference besides those of the pieces, so
  // that no change takes the charge meanwhile (RowPiece::exclusive). RESOURCE_EXHAUSTED if there is no room,
  // UNAVAILABLE for any other failure. After either error the bytes stay in memory.
  virtual absl::Status Spill() { return absl::OkStatus(); }

 protected:
  BlockHome& home() const { return *home_; }
  // Lowers cost_. The difference is no longer charged, and the caller gets it as a reservation.
  ByteReservation ShrinkTo(int64_t cost);
  // Ends the charge: the bytes no longer count as stored, and the caller gets them as a reservation.
  ByteReservation Uncharge();

 private:
  bool charged_ = false;
  int64_t cost_;
  const std::shared_ptr<BlockHome> home_;
};

// Makes the stored blocks of a run, or in Redis of one sample. Thread-safe; its blocks keep it alive.
class BlockHome : public std::enable_shared_from_this<BlockHome> {
 public:
  // `usage`: null if its blocks are not charged.
  explicit BlockHome(std::shared_ptr<RunUsage> usage) : usage_(std::move(usage)) {}
  virtual ~BlockHome() = default;

  const std::shared_ptr<RunUsage>& usage() const { return usage_; }
  // Writes changes of the run's samples before they take effect. Null if samples do not outlive the process.
  virtual SampleJournal* journal() { return nullptr; }

  // StoredBlock::cost of a new block of `rows` rows in `codec`.
  virtual int64_t Cost(const Geometry& geometry, int64_t rows, Codec codec) const = 0;
  // Makes a stored block of `block`, not charged yet. Requires that the home is held by a shared_ptr.
  virtual std::shared_ptr<StoredBlock> Keep(Block block, int64_t cost) = 0;

 private:
  const std::shared_ptr<RunUsage> usage_;
};

// Keeps blocks in memory.
class MemoryHome final : public BlockHome {
 public:
  using BlockHome::BlockHome;

  // Bytes, CRCs and the fixed overhead of a block.
  static int64_t CostOf(const Geometry& geometry, int64_t rows, Codec codec);

  int64_t Cost(const Geometry& geometry, int64_t rows, Codec codec) const override {
    return CostOf(geometry, rows, codec);
  }
  std::shared_ptr<StoredBlock> Keep(Block block, int64_t cost) override;
};

// Size of a block as a value outside memory: the CRCs of its planes (u32, little-endian), then its bytes.
int64_t ValueBytes(const Geometry& geometry, int64_t rows, Codec codec);
absl::Span<const uint8_t> CrcBytes(absl::Span<const uint32_t> crcs);
// Makes a block of `value`, which has the layout given at ValueBytes. `owner` keeps the value's bytes alive.
LoadedBlock BlockOfValue(const Geometry& geometry, RowRange rows, Codec codec, std::shared_ptr<const void> owner,
                         absl::Span<const uint8_t> value);

struct RowPiece {
  std::shared_ptr<StoredBlock> stored;
  RowRange rows;        // Inside stored->rows().
  bool shared = false;  // Came with a prefix: the block counts as the parent's.

  // True if only this piece refers to the block, so that nobody else can get to it.
  bool exclusive() const { return stored.use_count() == 1; }
};

// Index of the first of ascending pieces that ends after `row`; size() if none does.
size_t FirstEndingAfter(absl::Span<const RowPiece> pieces, int64_t row);

// A list of pieces. Move-only. Not thread-safe. Destroy returned pieces while no lock is held.
class RowPieces {
 public:
  RowPieces() = default;
  RowPieces(RowPieces&&) = default;
  RowPieces& operator=(RowPieces&&) = default;

  absl::Span<const RowPiece> all() const { return pieces_; }
  size_t size() const { return pieces_.size(); }
  const RowPiece& operator[](size_t i) const { return pieces_[i]; }
  size_t FirstEndingAfter(int64_t row) const { return server::FirstEndingAfter(pieces_, row); }
  // Bytes charged for the pieces that are not shared.
  int64_t charged_bytes() const;
  // Bytes charged for the exclusive pieces.
  int64_t exclusive_bytes() const;
  // Moves exclusive_bytes() into `pool`, for pieces that are about to be removed.
  void TakeExclusiveCharges(ByteReservation& pool);

  void Append(RowPiece piece);
  // Removes the pieces from index `first` on.
  std::vector<RowPiece> TakeFrom(size_t first);
  // Keeps rows [0, rows): a piece across the end is shortened, its block stays whole. Returns the removed pieces.
  std::vector<RowPiece> Truncate(int64_t rows);
  // The rows [0, rows) of the same blocks, marked as shared.
  RowPieces Prefix(int64_t rows) const;

  // The parts of pieces inside `range`, ascending.
  std::vector<RowPiece> Find(RowRange range) const;

 private:
  std::vector<RowPiece> pieces_;
};

// The rows of `range` that are recorded on both sides and differ. DATA_LOSS (kChecksum) if they differ and the stored
// block is damaged; errors of Load. Thread-safe.
absl::StatusOr<RowDifferences> CompareRows(const Geometry& geometry, const RowPieces& stored,
                                           absl::Span<const Block> blocks, RowRange range);

// A change of `pieces`, which stay as they are until Commit; nobody else may change them meanwhile. Not thread-safe.
class PieceChange {
 public:
  // The sample has rows [0, committed.begin) in `pieces`, and will end at committed.end. Only rows inside `committed`
  // are taken from `blocks`. `sealed`: the change also seals the sample.
  PieceChange(const RunInfo& run, BlockHome& home, const RowPieces& pieces, std::vector<Block> blocks,
              RowRange committed, bool sealed);

  // Budget bytes of the blocks that this change creates.
  int64_t cost() const { return cost_; }
  // Budget bytes of the blocks that this change replaces and that only `pieces` hold.
  int64_t reclaimable_bytes() const { return reclaimable_bytes_; }

  // Pieces before this index stay as they are.
  size_t first_piece() const { return first_piece_; }

  // Makes the new blocks. DATA_LOSS naming row and layer if a part does not match its CRC; errors of Load.
  absl::Status Merge();
  // After a successful Merge: the pieces that the sample will have from the window of committed.begin on.
  absl::Span<const RowPiece> tail() const { return tail_; }
  // The blocks of tail() that are new.
  absl::Span<const std::shared_ptr<StoredBlock>> added() const { return added_; }
  // Requires a successful Merge. Puts reclaimable_bytes() into `pool` and takes cost() bytes out of it. Returns the
  // pieces that it replaced.
  std::vector<RowPiece> Commit(RowPieces& pieces, ByteReservation& pool);

 private:
  // Rows of an existing piece (`piece` is its index), or of a new block.
  struct Part {
    RowRange rows;
    std::optional<size_t> piece;
    Block block;
  };
  // Parts of one window, without a gap between them. If `merge` is true, they become one new block.
  struct Group {
    std::vector<Part> parts;
    bool merge = false;

    RowRange rows() const { return {parts.front().rows.begin, parts.back().rows.end}; }
  };

  void Add(Part part);
  void Finish(Group& group, RowRange committed, bool sealed);
  void MergeOpenTail();
  bool IsFinal(const Part& part) const;
  void Count(const Group& group);
  absl::StatusOr<Block> MergeParts(const Group& group) const;
  void Keep(Block block, RowRange rows);

  const RunInfo& run_;
  BlockHome& home_;
  const RowPieces& pieces_;
  size_t first_piece_ = 0;
  std::vector<Group> groups_;
  std::vector<std::shared_ptr<StoredBlock>> added_;
  std::vector<RowPiece> tail_;
  int64_t cost_ = 0;
  int64_t reclaimable_bytes_ = 0;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_ROW_PIECES_H_
