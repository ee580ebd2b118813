#include "server/store/spill/spill_home.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/sample/row_pieces.h"
#include "server/store/spill/resident_bytes.h"

namespace routing_replay::server {
namespace {

constexpr int64_t kAllocationOverhead = 64;

absl::Span<const uint8_t> BytesOf(absl::Span<const uint32_t> crcs) {
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
    return kAllocationOverhead + static_cast<int64_t>(sizeof(SpillableBlock) + sizeof(SpillPlace) + sizeof(RowPiece));
  }

  SpillableBlock(std::shared_ptr<BlockHome> home, Block block, int64_t cost)
      : StoredBlock(std::move(home), block.rows, block.codec, cost), resident_(std::move(block)) {}

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
    return resident_.empty() ? 0 : StoredBlock::cost() - SpilledCost();
  }

  absl::Status Spill() override {
    ResidentBytes resident;
    {
      MutexLock lock(mutex());
      resident = resident_;
    }
    if (resident.empty()) return absl::OkStatus();
    absl::StatusOr<SpillPlace> place = spill_home().Write(View(resident));
    if (!place.ok()) return place.status();
    auto written = std::make_unique<const SpillPlace>(*std::move(place));
    ByteReservation freed;
    MutexLock lock(mutex());
    place_ = std::move(written);
    resident_ = ResidentBytes();  // `resident` still has it, until the lock is gone.
    freed = ShrinkTo(SpilledCost());
    return absl::OkStatus();
  }

 private:
  SpillHome& spill_home() const { return static_cast<SpillHome&>(home()); }
  // Of the cost and the charge too.
  Mutex& mutex() const { return spill_home().MutexOf(this); }
  BlockView View(const ResidentBytes& resident) const {
    return resident.view(*spill_home().geometry_, rows(), codec());
  }

  absl::StatusOr<LoadedBlock> LoadBytes() const override {
    ResidentBytes resident;
    SpillPlace place;
    {
      MutexLock lock(mutex());
      resident = resident_;
      if (resident.empty()) place = *place_;
    }
    if (resident.empty()) return spill_home().Read(place, rows(), codec());
    const BlockView view = View(resident);
    return LoadedBlock{std::make_shared<const ResidentBytes>(std::move(resident)), view};
  }

  ResidentBytes resident_ ABSL_GUARDED_BY(mutex());
  std::unique_ptr<const SpillPlace> place_ ABSL_GUARDED_BY(mutex());  // Where resident_ is empty.
};

int64_t SpillHome::Cost(const Geometry& geometry, int64_t rows, Codec codec) const {
  return MemoryHome::CostOf(geometry, rows, codec) + SpillableBlock::SpilledCost();
}

std::shared_ptr<StoredBlock> SpillHome::Keep(Block block, int64_t cost) {
  return std::make_shared<SpillableBlock>(shared_from_this(), std::move(block), cost);
}

absl::StatusOr<SpillPlace> SpillHome::Write(const BlockView& block) {
  absl::StatusOr<SpillPlace> place = segments_.Put({BytesOf(block.plane_crc32c), block.bytes});
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

}  // namespace routing_replay::server
