#include "server/store/sample/piece_change.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/wire/block/merge.h"

namespace routing_replay::server {
namespace {

// So many pieces may lie in an open run before small ones are merged.
constexpr size_t kOpenPieces = 8;

// What Merge gives for so many rows: PACKED only where it is smaller.
Codec FinalCodec(const RunInfo& run, int64_t rows) {
  const Geometry& geometry = *run.geometry;
  const bool packed = run.options.codec == Codec::kPacked &&
                      geometry.block_bytes(rows, Codec::kPacked) < geometry.block_bytes(rows, Codec::kRaw);
  return packed ? Codec::kPacked : Codec::kRaw;
}

}  // namespace

PieceChange::PieceChange(const RunInfo& run, BlockHome& home, const RowPieces& pieces, std::vector<Block> blocks,
                         RowRange committed, bool sealed)
    : run_(run), home_(home), pieces_(pieces) {
  const int64_t block_rows = run.options.block_rows;
  first_piece_ = pieces.FirstEndingAfter(committed.begin / block_rows * block_rows);
  for (size_t i = first_piece_; i < pieces.size(); ++i) Add({.rows = pieces[i].rows, .piece = i});
  for (Block& block : blocks) {
    const RowRange rows = Intersect(block.rows, committed);
    if (!rows.empty()) Add({.rows = rows, .block = std::move(block)});
  }
  for (Group& group : groups_) Finish(group, committed, sealed);
  if (!groups_.empty() && !groups_.back().merge && groups_.back().parts.size() >= kOpenPieces) MergeOpenTail();
  for (const Group& group : groups_) Count(group);
}

void PieceChange::Add(Part part) {
  const bool same_run = !groups_.empty() && groups_.back().rows().end == part.rows.begin &&
                        part.rows.begin % run_.options.block_rows != 0;
  if (!same_run) groups_.emplace_back();
  groups_.back().parts.push_back(std::move(part));
}

void PieceChange::Finish(Group& group, RowRange committed, bool sealed) {
  const int64_t end = group.rows().end;
  const bool complete = sealed || end < committed.end || end % run_.options.block_rows == 0;
  group.merge = complete && (group.parts.size() > 1 || !IsFinal(group.parts.front()));
}

// Takes pieces from the end as long as the one before is not longer than all behind it together. Whatever is merged so
// ends in a piece at least twice as long as its own, so each row is merged at most log2(block_rows) times.
void PieceChange::MergeOpenTail() {
  std::vector<Part>& parts = groups_.back().parts;
  size_t first = parts.size() - 1;
  int64_t rows = parts[first].rows.size();
  while (first > 0 && parts[first - 1].rows.size() <= rows) rows += parts[--first].rows.size();
  if (first + 1 == parts.size()) return;
  Group tail{.merge = true};
  std::move(parts.begin() + first, parts.end(), std::back_inserter(tail.parts));
  parts.resize(first);
  if (parts.empty()) groups_.pop_back();
  groups_.push_back(std::move(tail));
}

bool PieceChange::IsFinal(const Part& part) const {
  const RowRange rows = part.piece ? pieces_[*part.piece].stored->rows() : part.block.rows;
  const Codec codec = part.piece ? pieces_[*part.piece].stored->codec() : part.block.codec;
  const bool whole = part.rows == rows || (part.piece && pieces_[*part.piece].shared);
  return whole && codec == FinalCodec(run_, rows.size());
}

void PieceChange::Count(const Group& group) {
  if (group.merge) {
    cost_ += home_.Cost(*run_.geometry, group.rows().size(), FinalCodec(run_, group.rows().size()));
  }
  for (const Part& part : group.parts) {
    if (!part.piece && !group.merge) {
      cost_ += home_.Cost(*run_.geometry, part.block.rows.size(), part.block.codec);
    }
    if (part.piece && group.merge && pieces_[*part.piece].exclusive()) {
      reclaimable_bytes_ += pieces_[*part.piece].stored->cost();
    }
  }
}

absl::Status PieceChange::Merge() {
  for (Group& group : groups_) {
    if (group.merge) {
      absl::StatusOr<Block> merged = MergeParts(group);
      if (!merged.ok()) return merged.status();
      Keep(*std::move(merged), group.rows());
      for (Part& part : group.parts) part.block = Block{};  // At most one window is in memory twice.
      continue;
    }
    for (Part& part : group.parts) {
      if (part.piece) {
        tail_.push_back(pieces_[*part.piece]);
      } else {
        Keep(std::move(part.block), part.rows);
      }
    }
  }
  return absl::OkStatus();
}

std::vector<Block> PieceChange::TakeRest() {
  std::vector<Block> rest;
  for (Group& group : groups_) {
    for (Part& part : group.parts) {
      if (!part.piece && !part.block.bytes.empty()) rest.push_back(std::move(part.block));
    }
  }
  return rest;
}

absl::StatusOr<Block> PieceChange::MergeParts(const Group& group) const {
  std::vector<LoadedBlock> loaded;  // Keeps what `parts` shows.
  std::vector<BlockRows> parts;
  for (const Part& part : group.parts) {
    if (!part.piece) {
      parts.push_back({part.block.view(), part.rows});
      continue;
    }
    absl::StatusOr<LoadedBlock> block = Load(pieces_[*part.piece].stored);
    if (!block.ok()) return block.status();
    parts.push_back({block->view, part.rows});
    loaded.push_back(*std::move(block));
  }
  return routing_replay::Merge(*run_.geometry, parts, FinalCodec(run_, group.rows().size()));
}

void PieceChange::Keep(Block block, RowRange rows) {
  const int64_t cost = home_.Cost(*run_.geometry, block.rows.size(), block.codec);
  added_.push_back(home_.Keep(std::move(block), cost));
  tail_.push_back({added_.back(), rows});
}

std::vector<RowPiece> PieceChange::Commit(RowPieces& pieces, ByteReservation& pool) {
  std::vector<RowPiece> old = pieces.TakeFrom(first_piece_);
  for (const Group& group : groups_) {
    for (const Part& part : group.parts) {
      if (!part.piece) continue;
      RowPiece& piece = old[*part.piece - first_piece_];
      if (!group.merge) {
        piece.stored.reset();  // It stays, in tail_.
      } else if (piece.exclusive()) {
        pool.Merge(piece.stored->TakeCharge());
      }
    }
  }
  for (const std::shared_ptr<StoredBlock>& block : added_) block->Charge(pool);
  added_.clear();
  for (RowPiece& piece : tail_) pieces.Append(std::move(piece));
  std::erase_if(old, [](const RowPiece& piece) { return piece.stored == nullptr; });
  return old;
}

}  // namespace routing_replay::server
