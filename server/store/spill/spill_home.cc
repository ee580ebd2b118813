#include "server/store/spill/spill_home.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/sample/row_pieces.h"

namespace routing_replay {
namespace {

constexpr int64_t kAllocationOverhead = 64;

absl::Span<const uint8_t> BytesOf(const std::vector<uint32_t>& crcs) {
  return {reinterpret_cast<const uint8_t*>(crcs.data()), crcs.size() * sizeof(uint32_t)};
}

// A frame as it was read, and the CRCs at its beginning, aligned.
struct LoadedFrame {
  SpillFrame frame;
  std::vector<uint32_t> crcs;
};

}  // namespace

class SpillHome::SpillableBlock final : public StoredBlock {
 public:
  // Of memory, once it is spilled.
  static int64_t SpilledCost() {
    return kAllocationOverhead + static_cast<int64_t>(sizeof(SpillableBlock) + sizeof(RowPiece));
  }

  SpillableBlock(std::shared_ptr<SpillHome> home, Block block, int64_t cost)
      : StoredBlock(block.rows, block.codec, cost),
        home_(std::move(home)),
        mutex_(home_->MutexOf(this)),
        resident_(std::make_shared<const Block>(std::move(block))) {}

  int64_t cost() const override {
    MutexLock lock(mutex_);
    return cost_;
  }
  ByteReservation TakeCharge() override {
    MutexLock lock(mutex_);
    return charge_.Take();
  }
  int64_t spillable_bytes() const override {
    MutexLock lock(mutex_);
    return resident_ == nullptr ? 0 : cost_ - SpilledCost();
  }

  absl::StatusOr<LoadedBlock> Load() const override {
    std::shared_ptr<const Block> resident;
    SpillPlace place;
    {
      MutexLock lock(mutex_);
      resident = resident_;
      place = place_;
    }
    if (resident == nullptr) return home_->Read(place, rows(), codec());
    const BlockView view = resident->view();
    return LoadedBlock{std::move(resident), view};
  }

  absl::Status Spill() override {
    std::shared_ptr<const Block> resident;
    {
      MutexLock lock(mutex_);
      resident = resident_;
    }
    if (resident == nullptr) return absl::OkStatus();
    absl::StatusOr<SpillPlace> place = home_->Write(*resident);
    if (!place.ok()) return place.status();
    ByteReservation freed;
    MutexLock lock(mutex_);
    place_ = *std::move(place);
    resident_.reset();  // `resident` still has it, until the lock is gone.
    freed = charge_.ShrinkTo(SpilledCost());
    cost_ = SpilledCost();
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<SpillHome> home_;
  Mutex& mutex_;  // Of cost_ and charge_ too.
  std::shared_ptr<const Block> resident_ ABSL_GUARDED_BY(mutex_);
  SpillPlace place_ ABSL_GUARDED_BY(mutex_);  // Where resident_ is null.
};

int64_t SpillHome::Cost(const Geometry& geometry, int64_t rows, Codec codec) const {
  return MemoryHome().Cost(geometry, rows, codec) + SpillableBlock::SpilledCost();
}

std::shared_ptr<StoredBlock> SpillHome::Keep(Block block, int64_t cost) {
  return std::make_shared<SpillableBlock>(shared_from_this(), std::move(block), cost);
}

absl::StatusOr<SpillPlace> SpillHome::Write(const Block& block) {
  absl::StatusOr<SpillPlace> place = segments_.Put({BytesOf(block.plane_crc32c), block.bytes.span()});
  if (!place.ok()) ++area_->counts.write_failures;
  return place;
}

absl::StatusOr<LoadedBlock> SpillHome::Read(const SpillPlace& place, RowRange rows, Codec codec) const {
  const size_t crc_bytes = sizeof(uint32_t) * geometry_->num_moe_layers();
  const int64_t bytes = geometry_->block_bytes(rows.size(), codec);
  absl::StatusOr<SpillFrame> frame = place.segment->Read(place.offset, static_cast<int64_t>(crc_bytes) + bytes);
  ++area_->counts.loads;
  if (absl::IsDataLoss(frame.status())) {
    ++area_->counts.lost_blocks;
    return MakeError(absl::StatusCode::kDataLoss,
                     absl::StrCat("spilled block with rows ", ToString(rows), ": ", frame.status().message()),
                     {.reason = Reason::kChecksum});
  }
  if (!frame.ok()) return frame.status();
  auto loaded =
      std::make_shared<LoadedFrame>(LoadedFrame{*std::move(frame), std::vector<uint32_t>(geometry_->num_moe_layers())});
  const absl::Span<const uint8_t> all = loaded->frame.bytes();
  std::memcpy(loaded->crcs.data(), all.data(), crc_bytes);
  const BlockView view{rows, codec, loaded->crcs, all.subspan(crc_bytes)};
  return LoadedBlock{std::move(loaded), view};
}

}  // namespace routing_replay
