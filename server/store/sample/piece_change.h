// How new rows join the pieces of a sample: planned, paid for and merged before anything of the sample is touched, then
// put in place in one step that cannot fail.
//
//   PieceChange change(run, home, pieces, …);                          what to keep, what to merge
//   pay for change.cost() - change.reclaimable_bytes();
//   change.Merge();                                                    the heavy part; may find damage
//   write change.tail() where it lasts, if the store does that
//   change.Commit(pieces, pool);
//
// A maximal run of recorded rows inside one window becomes one block in the run's codec as soon as it is complete: when
// the window ends, an unrecorded range or another window follows, or the sample is sealed. So after a seal the blocks
// are the same however the rows arrived. The pieces of the run that is still open are merged in growing groups, so that
// n appends of one row cost n log n and not n squared.
#ifndef SERVER_STORE_SAMPLE_PIECE_CHANGE_H_
#define SERVER_STORE_SAMPLE_PIECE_CHANGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "proto/wire/block/block.h"
#include "server/store/sample/row_pieces.h"
#include "server/store/store.h"

namespace routing_replay::server {

// Not thread-safe. `pieces` must not change between construction and Commit. Without a Commit nothing has changed.
class PieceChange {
 public:
  // The sample holds rows [0, committed.begin) in `pieces`; afterwards its end is committed.end. Of `blocks` only the
  // rows inside `committed` are taken.
  PieceChange(const RunInfo& run, BlockHome& home, const RowPieces& pieces, std::vector<Block> blocks,
              RowRange committed, bool sealed);

  // Budget bytes of the blocks that this change makes.
  int64_t cost() const { return cost_; }
  // Budget bytes of the blocks that it replaces and that nobody else holds.
  int64_t reclaimable_bytes() const { return reclaimable_bytes_; }

  // Pieces before this index stay as they are.
  size_t first_piece() const { return first_piece_; }

  // DATA_LOSS naming row and layer if a part's bytes do not fit their CRC.
  absl::Status Merge();
  // Once Merge was OK: the pieces from the window of committed.begin on, as they will be.
  absl::Span<const RowPiece> tail() const { return tail_; }
  // Of those, the blocks that are new.
  absl::Span<const std::shared_ptr<StoredBlock>> added() const { return added_; }
  // After Merge, if there will be no Commit: the new blocks, as they were given, that are in none of added().
  std::vector<Block> TakeRest();
  // Requires that Merge was OK. Takes cost() bytes out of `pool` after putting reclaimable_bytes() into it. Gives back
  // the pieces that it replaced.
  std::vector<RowPiece> Commit(RowPieces& pieces, ByteReservation& pool);

 private:
  // Rows of a present piece, or of a new block.
  struct Part {
    RowRange rows;
    std::optional<size_t> piece;
    Block block;
  };
  // Consecutive parts of one run of rows. Merged: `parts` become one new block.
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
  size_t first_piece_ = 0;  // Pieces before it are not touched.
  std::vector<Group> groups_;
  std::vector<std::shared_ptr<StoredBlock>> added_;
  std::vector<RowPiece> tail_;
  int64_t cost_ = 0;
  int64_t reclaimable_bytes_ = 0;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_SAMPLE_PIECE_CHANGE_H_
