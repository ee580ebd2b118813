// Spilled bytes, frame by frame, in files that go when nobody wants any of their frames.
//
//   segment   frame | frame | …            up to segment_bytes, then the next file
//   frame     u32 CRC32C of all behind it | u32 length | u64 place | bytes        little-endian
//
// The place, segment number and offset, tells a frame from one that lies where it should not.
#ifndef SERVER_STORE_SPILL_SEGMENT_H_
#define SERVER_STORE_SPILL_SEGMENT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/buffer.h"
#include "proto/wire/mutex.h"
#include "server/admission/byte_budget.h"
#include "server/store/spill/spill_disk.h"

namespace routing_replay::server {

// A frame that was read and is what was written.
class SpillFrame {
 public:
  static constexpr size_t kHeaderBytes = 16;

  explicit SpillFrame(Buffer frame) : frame_(std::move(frame)) {}
  absl::Span<const uint8_t> bytes() const { return frame_.span().subspan(kHeaderBytes); }

 private:
  Buffer frame_;
};

// What happened so far. Each count is right by itself.
struct SpillCounts {
  std::atomic<int64_t> samples{0};         // That went to the disk.
  std::atomic<int64_t> bytes{0};           // Of memory that it gave back.
  std::atomic<int64_t> write_failures{0};  // Full or broken disk, or a used-up budget: the block stayed in memory.
  std::atomic<int64_t> loads{0};           // Blocks read back, from the disk, each time they were asked for.
  std::atomic<int64_t> lost_blocks{0};     // Loads that found other bytes than were written, or none.
};

// A disk and what its users share. Thread-safe.
struct SpillArea {
  SpillArea(std::shared_ptr<SpillDisk> disk, int64_t budget_bytes, int64_t segment_bytes)
      : disk(std::move(disk)), segment_bytes(segment_bytes), space(budget_bytes) {}

  const std::shared_ptr<SpillDisk> disk;
  const int64_t segment_bytes;  // A segment that has as many takes no more frames.
  ByteBudget space;             // Of the disk: what the files there take.
  std::atomic<uint64_t> next_segment{0};
  SpillCounts counts;
};

// A file, as long as somebody holds one of its frames. Reading is thread-safe; one thread at a time appends.
class SpillSegment {
 public:
  explicit SpillSegment(std::shared_ptr<SpillArea> area);
  SpillSegment(const SpillSegment&) = delete;
  SpillSegment& operator=(const SpillSegment&) = delete;
  ~SpillSegment() { area_->disk->Remove(name_); }

  // The next frame, in room that is counted as long as the file is there. Its offset. Errors of SpillDisk::Write, and
  // RESOURCE_EXHAUSTED if the area's budget is used up.
  absl::StatusOr<int64_t> Append(absl::Span<const absl::Span<const uint8_t>> parts);
  // `bytes`: of the parts together. DATA_LOSS if the frame is not what was written; otherwise as SpillDisk::Read.
  absl::StatusOr<SpillFrame> Read(int64_t offset, int64_t bytes) const;
  // Of all frames.
  int64_t size() const { return size_; }

 private:
  uint64_t PlaceOf(int64_t offset) const { return number_ << 40 | static_cast<uint64_t>(offset); }

  const std::shared_ptr<SpillArea> area_;
  const uint64_t number_;
  const std::string name_;
  int64_t size_ = 0;
  ByteReservation space_;
};

struct SpillPlace {
  std::shared_ptr<const SpillSegment> segment;
  int64_t offset = 0;
};

// Fills one segment after the other. Thread-safe.
class SegmentWriter {
 public:
  explicit SegmentWriter(std::shared_ptr<SpillArea> area) : area_(std::move(area)) {}

  // Errors of SpillSegment::Append.
  absl::StatusOr<SpillPlace> Put(absl::Span<const absl::Span<const uint8_t>> parts);

 private:
  const std::shared_ptr<SpillArea> area_;
  Mutex mutex_;
  std::weak_ptr<SpillSegment> open_ ABSL_GUARDED_BY(mutex_);  // Gone as soon as nobody wants its frames.
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_SPILL_SEGMENT_H_
