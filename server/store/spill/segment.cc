#include "server/store/spill/segment.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/checksum.h"

namespace routing_replay::server {
namespace {

struct FrameHeader {
  uint32_t crc = 0;
  uint32_t length = 0;
  uint64_t place = 0;

  absl::Span<const uint8_t> bytes() const { return {reinterpret_cast<const uint8_t*>(this), sizeof(*this)}; }
  absl::Span<const uint8_t> checked() const { return bytes().subspan(sizeof(crc)); }
};
static_assert(sizeof(FrameHeader) == SpillFrame::kHeaderBytes);

}  // namespace

SpillSegment::SpillSegment(std::shared_ptr<SpillArea> area)
    : area_(std::move(area)), number_(area_->next_segment++), name_(absl::StrCat(number_)) {}

absl::StatusOr<int64_t> SpillSegment::Append(absl::Span<const absl::Span<const uint8_t>> parts) {
  FrameHeader header{.place = PlaceOf(size_)};
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

absl::StatusOr<SpillFrame> SpillSegment::Read(int64_t offset, int64_t bytes) const {
  FrameHeader header;
  Buffer frame(sizeof(header) + bytes);
  if (absl::Status status = area_->disk->Read(name_, offset, frame.span()); !status.ok()) return status;
  std::memcpy(&header, frame.data(), sizeof(header));
  const bool fits = header.length == bytes && header.place == PlaceOf(offset) &&
                    header.crc == Crc32c(frame.span().subspan(sizeof(header.crc)));
  if (!fits)
    return absl::DataLossError(absl::StrCat("spilled bytes at ", offset, " of segment ", name_, " are damaged"));
  return SpillFrame(std::move(frame));
}

absl::StatusOr<SpillPlace> SegmentWriter::Put(absl::Span<const absl::Span<const uint8_t>> parts) {
  MutexLock lock(mutex_);
  std::shared_ptr<SpillSegment> segment = open_.lock();
  if (segment == nullptr || segment->size() >= area_->segment_bytes) {
    segment = std::make_shared<SpillSegment>(area_);
  }
  const absl::StatusOr<int64_t> offset = segment->Append(parts);
  if (!offset.ok()) return offset.status();
  open_ = segment;
  return SpillPlace{std::move(segment), *offset};
}

}  // namespace routing_replay::server
