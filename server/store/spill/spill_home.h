// Blocks in memory that can go to a disk and are read from there.
#ifndef SERVER_STORE_SPILL_SPILL_HOME_H_
#define SERVER_STORE_SPILL_SPILL_HOME_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "proto/wire/mutex.h"
#include "routing_replay/wire/geometry.h"
#include "server/store/sample/stored_block.h"
#include "server/store/spill/segment.h"

namespace routing_replay::server {

// Of one run. Thread-safe. A block that was spilled is read from the disk whenever it is asked for, and takes memory
// for as long as somebody holds what was loaded: there is no cache but the operating system's.
class SpillHome final : public BlockHome {
 public:
  SpillHome(std::shared_ptr<RunUsage> usage, std::shared_ptr<const Geometry> geometry, std::shared_ptr<SpillArea> area)
      : BlockHome(std::move(usage)), geometry_(std::move(geometry)), area_(std::move(area)), segments_(area_) {}

  int64_t Cost(const Geometry& geometry, int64_t rows, Codec codec) const override;
  std::shared_ptr<StoredBlock> Keep(Block block, int64_t cost) override;

 private:
  class SpillableBlock;

  absl::StatusOr<SpillPlace> Write(const BlockView& block);
  absl::StatusOr<LoadedBlock> Read(const SpillPlace& place, RowRange rows, Codec codec) const;
  // A block's own mutex would be a good part of what it takes in memory.
  Mutex& MutexOf(const StoredBlock* block) const {
    return mutexes_[reinterpret_cast<uintptr_t>(block) / alignof(std::max_align_t) / 8 % mutexes_.size()];
  }

  const std::shared_ptr<const Geometry> geometry_;
  const std::shared_ptr<SpillArea> area_;
  SegmentWriter segments_;
  mutable std::array<Mutex, 64> mutexes_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_SPILL_SPILL_HOME_H_
