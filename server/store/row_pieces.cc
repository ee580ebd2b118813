#include "server/store/row_pieces.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/block/block.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

// Memory that the allocator adds per block: headers of the block, its bytes and CRCs; spare room of the piece list.
constexpr int64_t kAllocationOverhead = 128;

class ResidentBlock final : public StoredBlock {
 public:
  ResidentBlock(std::shared_ptr<BlockHome> home, Block block, int64_t cost)
      : StoredBlock(std::move(home), block.rows, block.codec, cost), block_(std::move(block)) {}

 private:
  absl::StatusOr<LoadedBlock> LoadBytes() const override { return LoadedBlock{nullptr, block_.view()}; }

  const Block block_;
};

absl::Status CheckStored(const Geometry& geometry, const BlockView& block) {
  absl::Status crc = CheckCrc(geometry, block);
  if (crc.ok()) return crc;
  ErrorDetail detail = GetErrorDetail(crc).value_or(ErrorDetail{});
  detail.reason = Reason::kChecksum;
  return MakeError(absl::StatusCode::kDataLoss,
                   absl::StrCat("stored rows ", ToString(block.rows), " are damaged: ", crc.message()), detail);
}

// When the last rows of an unsealed sample consist of this many pieces, small ones are merged (MergeOpenTail).
constexpr size_t kOpenPieces = 8;

// The codec that Merge gives this many rows: PACKED only if it is smaller.
Codec FinalCodec(const RunInfo& run, int64_t rows) { return SmallerCodec(*run.geometry, rows, run.options.codec); }

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
  return std::make_shared<ResidentBlock>(shared_from_this(), std::move(block), cost);
}

int64_t ValueBytes(const Geometry& geometry, int64_t rows, Codec codec) {
  return static_cast<int64_t>(sizeof(uint32_t)) * geometry.num_moe_layers() + geometry.block_bytes(rows, codec);
}

absl::Span<const uint8_t> CrcBytes(absl::Span<const uint32_t> crcs) {
  return {reinterpret_cast<const uint8_t*>(crcs.data()), crcs.size() * sizeof(uint32_t)};
}

LoadedBlock BlockOfValue(const Geometry& geometry, RowRange rows, Codec codec, std::shared_ptr<const void> owner,
                         absl::Span<const uint8_t> value) {
  struct Loaded {
    std::shared_ptr<const void> value;
    std::vector<uint32_t> crcs;  // A copy: those in the value may not be aligned.
  };
  auto loaded = std::make_shared<Loaded>(Loaded{std::move(owner), std::vector<uint32_t>(geometry.num_moe_layers())});
  const size_t crc_bytes = CrcBytes(loaded->crcs).size();
  std::memcpy(loaded->crcs.data(), value.data(), crc_bytes);
  const BlockView view{rows, codec, loaded->crcs, value.subspan(crc_bytes)};
  return {std::move(loaded), view};
}

size_t FirstEndingAfter(absl::Span<const RowPiece> pieces, int64_t row) {
  const auto first = std::partition_point(pieces.begin(), pieces.end(),
                                          [row](const RowPiece& piece) { return piece.rows.end <= row; });
  return first - pieces.begin();
}

int64_t RowPieces::charged_bytes() const {
  int64_t bytes = 0;
  for (const RowPiece& piece : pieces_) bytes += piece.shared ? 0 : piece.stored->cost();
  return bytes;
}

int64_t RowPieces::exclusive_bytes() const {
  int64_t bytes = 0;
  for (const RowPiece& piece : pieces_) bytes += piece.exclusive() ? piece.stored->cost() : 0;
  return bytes;
}

void RowPieces::TakeExclusiveCharges(ByteReservation& pool) {
  for (RowPiece& piece : pieces_) {
    if (piece.exclusive()) pool.Merge(piece.stored->TakeCharge());
  }
}

void RowPieces::Append(RowPiece piece) { pieces_.push_back(std::move(piece)); }

std::vector<RowPiece> RowPieces::TakeFrom(size_t first) {
  std::vector<RowPiece> taken(std::make_move_iterator(pieces_.begin() + first), std::make_move_iterator(pieces_.end()));
  pieces_.resize(first);
  return taken;
}

std::vector<RowPiece> RowPieces::Truncate(int64_t rows) {
  std::vector<RowPiece> removed = TakeFrom(FirstEndingAfter(rows));
  if (!removed.empty() && removed.front().rows.begin < rows) {
    Append({removed.front().stored, {removed.front().rows.begin, rows}, removed.front().shared});
  }
  return removed;
}

RowPieces RowPieces::Prefix(int64_t rows) const {
  RowPieces prefix;
  for (RowPiece& piece : Find({0, rows})) {
    piece.shared = true;
    prefix.Append(std::move(piece));
  }
  return prefix;
}

std::vector<RowPiece> RowPieces::Find(RowRange range) const {
  std::vector<RowPiece> found;
  if (range.empty()) return found;
  for (size_t i = FirstEndingAfter(range.begin); i < pieces_.size() && pieces_[i].rows.begin < range.end; ++i) {
    found.push_back({pieces_[i].stored, Intersect(pieces_[i].rows, range), pieces_[i].shared});
  }
  return found;
}

absl::StatusOr<RowDifferences> CompareRows(const Geometry& geometry, const RowPieces& stored,
                                           absl::Span<const Block> blocks, RowRange range) {
  RowDifferences differences;
  for (const Block& block : blocks) {
    for (const RowPiece& piece : stored.Find(Intersect(block.rows, range))) {
      RR_ASSIGN_OR_RETURN(const LoadedBlock loaded, Load(piece.stored));
      const BlockView& kept = loaded.view;
      const RowDifferences found = CountDifferingRows(geometry, {kept, piece.rows}, {block.view(), piece.rows});
      if (found.rows == 0) continue;
      RR_RETURN_IF_ERROR(CheckStored(geometry, kept));
      if (differences.rows == 0) differences.first_row = found.first_row;
      differences.rows += found.rows;
    }
  }
  return differences;
}

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

// Merges the last pieces. Going backwards, it adds a piece as long as that is not longer than all those after it.
// The merged piece is at least twice as long as each of its parts but the last, so a row is merged about
// log2(block_rows) times at most.
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
      RR_ASSIGN_OR_RETURN(Block merged, MergeParts(group));
      Keep(std::move(merged), group.rows());
      // Frees the parts here, so that at most one window is in memory twice.
      for (Part& part : group.parts) part.block = Block{};
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

absl::StatusOr<Block> PieceChange::MergeParts(const Group& group) const {
  std::vector<LoadedBlock> loaded;  // Keeps the bytes that `parts` points to.
  std::vector<BlockRows> parts;
  for (const Part& part : group.parts) {
    if (!part.piece) {
      parts.push_back({part.block.view(), part.rows});
      continue;
    }
    RR_ASSIGN_OR_RETURN(LoadedBlock block, Load(pieces_[*part.piece].stored));
    parts.push_back({block.view, part.rows});
    loaded.push_back(std::move(block));
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
        piece.stored.reset();  // The block stays alive in tail_.
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
