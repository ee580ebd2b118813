// Blocks that can move from memory to a disk and are then read from there, frame by frame. A file, about segment_bytes
// long, is a sequence of frames, each with the bytes of one block; their CRC32C stays in memory. A file is removed when
// none of its frames is needed.
#ifndef SERVER_STORE_SPILL_SPILL_H_
#define SERVER_STORE_SPILL_SPILL_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/buffer.h"
#include "proto/wire/mutex.h"
#include "routing_replay/wire/geometry.h"
#include "server/admission/byte_budget.h"
#include "server/store/row_pieces.h"

namespace routing_replay::server {

// Files that grow at their end, are read at any offset and are removed as a whole. Thread-safe; one thread at a time
// writes a file. Tests inject failures here.
class SpillDisk {
 public:
  virtual ~SpillDisk() = default;

  // Writes `parts`, one after the other, from `offset` on; makes the file if it does not exist. RESOURCE_EXHAUSTED if
  // there is no room, UNAVAILABLE for any other failure. After either error the bytes from `offset` on are undefined.
  virtual absl::Status Write(const std::string& name, int64_t offset,
                             absl::Span<const absl::Span<const uint8_t>> parts) = 0;
  // Fills `bytes` with those from `offset` on. DATA_LOSS if they do not exist or the disk has lost them (EIO).
  // UNAVAILABLE for any other failure, for example too many open files.
  virtual absl::Status Read(const std::string& name, int64_t offset, absl::Span<uint8_t> bytes) const = 0;
  // No effect if the file does not exist.
  virtual void Remove(const std::string& name) = 0;
};

// The files of a directory, which is created if it does not exist. Removes the spill files that an earlier process
// left, which only that process could use; does not touch files with other names. FAILED_PRECONDITION while another
// process has the directory open, UNAVAILABLE or RESOURCE_EXHAUSTED if it cannot be used.
absl::StatusOr<std::shared_ptr<SpillDisk>> OpenSpillDirectory(const std::string& path);

// Counts since the start. Each count is consistent by itself only.
struct SpillCounts {
  std::atomic<int64_t> samples{0};  // Number of samples moved to the disk.
  std::atomic<int64_t> bytes{0};    // Memory that these moves freed.
  // Failed writes, because of a full or broken disk or a used-up budget: the block stayed in memory.
  std::atomic<int64_t> write_failures{0};
  std::atomic<int64_t> loads{0};        // Blocks read back; every read from the disk counts.
  std::atomic<int64_t> lost_blocks{0};  // Loads that found damaged or missing bytes.
};

// A disk and the state that its users share. Thread-safe.
struct SpillArea {
  SpillArea(std::shared_ptr<SpillDisk> disk, int64_t budget_bytes, int64_t segment_bytes)
      : disk(std::move(disk)), segment_bytes(segment_bytes), space(budget_bytes) {}

  const std::shared_ptr<SpillDisk> disk;
  const int64_t segment_bytes;  // A segment of this size gets no more frames.
  ByteBudget space;             // Budget for the files on the disk.
  std::atomic<uint64_t> next_segment{0};
  SpillCounts counts;
};

// One file of the spill directory: a sequence of frames, each with a spilled block. It is removed when nobody holds one
// of its frames any more. Any thread may read; only one thread at a time may append.
class SpillSegment {
 public:
  explicit SpillSegment(std::shared_ptr<SpillArea> area);
  SpillSegment(const SpillSegment&) = delete;
  SpillSegment& operator=(const SpillSegment&) = delete;
  ~SpillSegment() { area_->disk->Remove(name_); }

  // Appends the next frame and returns its offset. The frame counts against the area's budget as long as the file
  // exists. Fails with the errors of SpillDisk::Write, and with RESOURCE_EXHAUSTED if the budget is used up.
  absl::StatusOr<int64_t> Append(absl::Span<const absl::Span<const uint8_t>> parts);
  // Returns a frame, of `bytes` bytes. DATA_LOSS if it does not have this CRC32C; otherwise errors of SpillDisk::Read.
  absl::StatusOr<Buffer> Read(int64_t offset, int64_t bytes, uint32_t crc32c) const;
  int64_t size() const { return size_; }

 private:
  const std::shared_ptr<SpillArea> area_;
  const std::string name_;
  int64_t size_ = 0;
  ByteReservation space_;
};

// A frame; it keeps its segment alive.
struct SpillFrame {
  std::shared_ptr<const SpillSegment> segment;
  int64_t offset = 0;
  uint32_t crc32c = 0;
};

// Fills one segment after the other. Thread-safe.
class SegmentWriter {
 public:
  explicit SegmentWriter(std::shared_ptr<SpillArea> area) : area_(std::move(area)) {}

  // Writes a frame. Errors of SpillSegment::Append.
  absl::StatusOr<SpillFrame> Put(absl::Span<const absl::Span<const uint8_t>> parts);

 private:
  const std::shared_ptr<SpillArea> area_;
  Mutex mutex_;
  std::weak_ptr<SpillSegment> open_ ABSL_GUARDED_BY(mutex_);  // Expires as soon as nobody holds one of its frames.
};

// Keeps the blocks of one run, in memory or spilled. Thread-safe. A spilled block is read from the disk whenever it is
// requested, and takes memory while somebody holds the loaded bytes: the only cache is the operating system's.
class SpillHome final : public BlockHome {
 public:
  SpillHome(std::shared_ptr<RunUsage> usage, std::shared_ptr<const Geometry> geometry, std::shared_ptr<SpillArea> area)
      : BlockHome(std::move(usage)), geometry_(std::move(geometry)), area_(std::move(area)), segments_(area_) {}

  int64_t Cost(const Geometry& geometry, int64_t rows, Codec codec) const override;
  std::shared_ptr<StoredBlock> Keep(Block block, int64_t cost) override;

 private:
  class SpillableBlock;

  absl::StatusOr<SpillFrame> Write(const BlockView& block);
  absl::StatusOr<LoadedBlock> Read(const SpillFrame& frame, RowRange rows, Codec codec) const;
  // Blocks share a limited number of mutexes, because one per block would take too much memory.
  Mutex& MutexOf(const StoredBlock* block) const {
    return mutexes_[reinterpret_cast<uintptr_t>(block) / alignof(std::max_align_t) / 8 % mutexes_.size()];
  }

  const std::shared_ptr<const Geometry> geometry_;
  const std::shared_ptr<SpillArea> area_;
  SegmentWriter segments_;
  mutable std::array<Mutex, 64> mutexes_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_SPILL_SPILL_H_
