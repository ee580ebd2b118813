#include "server/store/spill/spill_home.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/sample/row_pieces.h"

namespace routing_replay::server {
namespace {

struct FrameHeader {
  uint32_t crc = 0;
  uint32_t length = 0;
  uint64_t at = 0;

  absl::Span<const uint8_t> bytes() const { return {reinterpret_cast<const uint8_t*>(this), sizeof(*this)}; }
  absl::Span<const uint8_t> checked() const { return bytes().subspan(sizeof(crc)); }
};
static_assert(sizeof(FrameHeader) == LoadedBytes::kHeaderBytes);

constexpr int64_t kAllocationOverhead = 64;

absl::Span<const uint8_t> BytesOf(absl::Span<const uint32_t> crcs) {
  return {reinterpret_cast<const uint8_t*>(crcs.data()), crcs.size() * sizeof(uint32_t)};
}

// A frame as it was read, and the CRCs at its beginning, aligned.
struct LoadedFrame {
  LoadedBytes bytes;
  std::vector<uint32_t> crcs;
};

}  // namespace

SpillSegment::SpillSegment(std::shared_ptr<SpillArea> area)
    : area_(std::move(area)), number_(area_->next_segment++), name_(absl::StrCat(number_)) {}

absl::StatusOr<int64_t> SpillSegment::Append(absl::Span<const absl::Span<const uint8_t>> parts) {
  FrameHeader header{.at = NumberAt(size_)};
  for (absl::Span<const uint8_t> part : parts) header.length += part.size();
  header.crc = Crc32c(header.checked());
  for (absl::Span<const uint8_t> part : parts) header.crc = Crc32cExtend(header.crc, part);
  absl::StatusOr<ByteReservation> room = area_->space.Reserve(static_cast<int64_t>(sizeof(header) + header.length));
  if (!room.ok()) return absl::ResourceExhaustedError("the budget of the spill directory is used up");
  std::vector<absl::Span<const uint8_t>> frame{header.bytes()};
  frame.insert(frame.end(), parts.begin(), parts.end());
  if (absl::Status status = area_->disk->Write(name_, size_, frame); !status.ok()) return status;
  const int64_t offset = size_;
  size_ += room->bytes();
  space_.Merge(*std::move(room));
  return offset;
}

absl::StatusOr<LoadedBytes> SpillSegment::Read(int64_t offset, int64_t bytes) const {
  FrameHeader header;
  Buffer frame(sizeof(header) + bytes);
  if (absl::Status status = area_->disk->Read(name_, offset, frame.span()); !status.ok()) return status;
  std::memcpy(&header, frame.data(), sizeof(header));
  const bool fits = header.length == bytes && header.at == NumberAt(offset) &&
                    header.crc == Crc32c(frame.span().subspan(sizeof(header.crc)));
  if (!fits)
    return absl::DataLossError(absl::StrCat("spilled bytes at ", offset, " of segment ", name_, " are damaged"));
  return LoadedBytes(std::move(frame));
}

absl::StatusOr<SpillFrame> SegmentWriter::Put(absl::Span<const absl::Span<const uint8_t>> parts) {
  MutexLock lock(mutex_);
  std::shared_ptr<SpillSegment> segment = open_.lock();
  if (segment == nullptr || segment->size() >= area_->segment_bytes) {
    segment = std::make_shared<SpillSegment>(area_);
  }
  const absl::StatusOr<int64_t> offset = segment->Append(parts);
  if (!offset.ok()) return offset.status();
  open_ = segment;
  return SpillFrame{std::move(segment), *offset};
}

class SpillHome::SpillableBlock final : public StoredBlock {
 public:
  // Of memory, once it is spilled.
  static int64_t SpilledCost() {
    return kAllocationOverhead + static_cast<int64_t>(sizeof(SpillableBlock) + sizeof(SpillFrame) + sizeof(RowPiece));
  }

  SpillableBlock(std::shared_ptr<BlockHome> home, Block block, int64_t cost)
      : StoredBlock(std::move(home), block.rows, block.codec, cost),
        resident_(static_cast<SpillHome&>(this->home()).memory_->Keep(std::move(block), 0)) {}

  int64_t cost() const override {
    MutexLock lock(mutex());
    return StoredBlock::cost();
  }
  ByteReservation TakeCharge() override {
    MutexLock lock(mutex());
    return Uncharge();
  }
  int64_t spillable_bytes() const override {
    MutexLock lock(mutex());
    return resident_ == nullptr ? 0 : StoredBlock::cost() - SpilledCost();
  }

  absl::Status Spill() override {
    std::shared_ptr<StoredBlock> resident;
    {
      MutexLock lock(mutex());
      resident = resident_;
    }
    if (resident == nullptr) return absl::OkStatus();
    const absl::StatusOr<LoadedBlock> loaded = Load(resident);
    if (!loaded.ok()) return loaded.status();
    absl::StatusOr<SpillFrame> frame = spill_home().Write(loaded->view);
    if (!frame.ok()) return frame.status();
    auto written = std::make_unique<const SpillFrame>(*std::move(frame));
    ByteReservation freed;
    MutexLock lock(mutex());
    frame_ = std::move(written);
    resident_.reset();  // `resident` still has it, until the lock is gone.
    freed = ShrinkTo(SpilledCost());
    return absl::OkStatus();
  }

 private:
  SpillHome& spill_home() const { return static_cast<SpillHome&>(home()); }
  // Of the cost and the charge too.
  Mutex& mutex() const { return spill_home().MutexOf(this); }
  absl::StatusOr<LoadedBlock> LoadBytes() const override {
    std::shared_ptr<StoredBlock> resident;
    SpillFrame frame;
    {
      MutexLock lock(mutex());
      resident = resident_;
      if (resident == nullptr) frame = *frame_;
    }
    return resident != nullptr ? Load(std::move(resident)) : spill_home().Read(frame, rows(), codec());
  }

  std::shared_ptr<StoredBlock> resident_ ABSL_GUARDED_BY(mutex());
  std::unique_ptr<const SpillFrame> frame_ ABSL_GUARDED_BY(mutex());  // Where resident_ is null.
};

int64_t SpillHome::Cost(const Geometry& geometry, int64_t rows, Codec codec) const {
  return MemoryHome::CostOf(geometry, rows, codec) + SpillableBlock::SpilledCost();
}

std::shared_ptr<StoredBlock> SpillHome::Keep(Block block, int64_t cost) {
  return std::make_shared<SpillableBlock>(shared_from_this(), std::move(block), cost);
}

absl::StatusOr<SpillFrame> SpillHome::Write(const BlockView& block) {
  absl::StatusOr<SpillFrame> frame = segments_.Put({BytesOf(block.plane_crc32c), block.bytes});
  if (!frame.ok()) ++area_->counts.write_failures;
  return frame;
}

absl::StatusOr<LoadedBlock> SpillHome::Read(const SpillFrame& frame, RowRange rows, Codec codec) const {
  const size_t crc_bytes = sizeof(uint32_t) * geometry_->num_moe_layers();
  const int64_t bytes = geometry_->block_bytes(rows.size(), codec);
  absl::StatusOr<LoadedBytes> bytes_read = frame.segment->Read(frame.offset, static_cast<int64_t>(crc_bytes) + bytes);
  ++area_->counts.loads;
  if (absl::IsDataLoss(bytes_read.status())) {
    ++area_->counts.lost_blocks;
    return MakeError(absl::StatusCode::kDataLoss,
                     absl::StrCat("spilled block with rows ", ToString(rows), ": ", bytes_read.status().message()),
                     {.reason = Reason::kChecksum});
  }
  if (!bytes_read.ok()) return bytes_read.status();
  auto loaded = std::make_shared<LoadedFrame>(
      LoadedFrame{*std::move(bytes_read), std::vector<uint32_t>(geometry_->num_moe_layers())});
  const absl::Span<const uint8_t> all = loaded->bytes.bytes();
  std::memcpy(loaded->crcs.data(), all.data(), crc_bytes);
  const BlockView view{rows, codec, loaded->crcs, all.subspan(crc_bytes)};
  return LoadedBlock{std::move(loaded), view};
}

}  // namespace routing_replay::server
