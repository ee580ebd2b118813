#include "proto/wire/message/frame.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

static_assert(std::endian::native == std::endian::little);

template <typename T>
void Store(char* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

template <typename T>
T Load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

constexpr uint8_t kMark = 0xD1;  // The second byte of every frame.
constexpr size_t kMarkAt = 1, kPartsAt = 2, kHeaderAt = 4, kPayloadAt = 8;

// Moves past the next `bytes` bytes of `pieces`; `next` is the index of the first unfinished piece.
void Pass(std::vector<iovec>& pieces, size_t& next, size_t bytes) {
  while (next < pieces.size() && bytes >= pieces[next].iov_len) bytes -= pieces[next++].iov_len;
  if (bytes == 0) return;
  pieces[next].iov_base = static_cast<uint8_t*>(pieces[next].iov_base) + bytes;
  pieces[next].iov_len -= bytes;
}

absl::Status NoFrame(absl::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("frame: ", what), {.reason = Reason::kEncoding});
}

}  // namespace

std::string EncodeFrame(FrameType type, size_t header_bytes, size_t payload_bytes, absl::Span<const uint32_t> parts) {
  std::string bytes(kFrameBytes + parts.size() * sizeof(uint32_t), '\0');
  char* out = bytes.data();
  out[0] = static_cast<char>(type);
  out[kMarkAt] = static_cast<char>(kMark);
  Store<uint16_t>(out + kPartsAt, static_cast<uint16_t>(parts.size()));
  Store<uint32_t>(out + kHeaderAt, static_cast<uint32_t>(header_bytes));
  Store<uint64_t>(out + kPayloadAt, payload_bytes);
  for (size_t i = 0; i < parts.size(); ++i) {
    Store<uint32_t>(out + kFrameBytes + i * sizeof(uint32_t), parts[i]);
  }
  return bytes;
}

absl::string_view ReceivedFrame::header() const {
  return {reinterpret_cast<const char*>(table.data()) + header_at_, table.size() - header_at_};
}

ByteChain ReceivedFrame::chain() const {
  ByteChain chain(table.span().subspan(header_at_));
  for (size_t left = payload_bytes_; const Buffer& part : parts) {
    chain.Append(part.span().first(std::min(left, part.size())));
    left -= std::min(left, part.size());
  }
  return chain;
}

absl::Span<const iovec> FrameReader::Space() {
  if (stage_ == Stage::kPayload) return absl::MakeConstSpan(space_).subspan(next_);
  const absl::Span<uint8_t> whole = stage_ == Stage::kFrame ? absl::MakeSpan(start_) : received_.table.span();
  const absl::Span<uint8_t> rest = whole.subspan(stage_ == Stage::kDone ? whole.size() : filled_);
  space_.assign(1, {rest.data(), rest.size()});
  return space_;
}

absl::Status FrameReader::Advance(size_t bytes) {
  if (stage_ == Stage::kPayload) {
    Pass(space_, next_, bytes);
    if (next_ == space_.size()) stage_ = Stage::kDone;
    return absl::OkStatus();
  }
  filled_ += bytes;
  const size_t whole = stage_ == Stage::kFrame ? kFrameBytes : received_.table.size();
  return filled_ < whole ? absl::OkStatus() : EndStage();
}

absl::Status FrameReader::EndStage() {
  if (stage_ == Stage::kTable) return MakeParts();
  frame_ = {.type = static_cast<FrameType>(start_[0]),
            .parts = Load<uint16_t>(&start_[kPartsAt]),
            .header_bytes = Load<uint32_t>(&start_[kHeaderAt]),
            .payload_bytes = Load<uint64_t>(&start_[kPayloadAt])};
  if (start_[kMarkAt] != kMark || frame_.type < FrameType::kCall || frame_.type > FrameType::kEnd) {
    return NoFrame(absl::StrCat("invalid start: bytes ", start_[0], " and ", start_[kMarkAt]));
  }
  if (frame_.parts > kMaxFrameParts || frame_.parts > frame_.payload_bytes) {
    return NoFrame(absl::StrCat(frame_.parts, " parts for a payload of ", frame_.payload_bytes, " bytes"));
  }
  RR_RETURN_IF_ERROR(admit_(frame_));
  received_.type_ = frame_.type;
  received_.payload_bytes_ = frame_.payload_bytes;
  received_.header_at_ = frame_.parts * sizeof(uint32_t);
  received_.table = Buffer(received_.header_at_ + frame_.header_bytes);
  filled_ = 0;
  stage_ = Stage::kTable;
  return received_.table.empty() ? MakeParts() : absl::OkStatus();
}

absl::Status FrameReader::MakeParts() {
  uint64_t left = frame_.payload_bytes;
  std::vector<uint32_t> sizes(frame_.parts);
  for (size_t i = 0; i < sizes.size(); ++i) {
    sizes[i] = Load<uint32_t>(received_.table.data() + i * sizeof(uint32_t));
    if (sizes[i] == 0 || sizes[i] > left)
      return NoFrame(absl::StrCat("part ", i, " states ", sizes[i], " bytes; the payload has ", left, " left"));
    left -= sizes[i];
  }
  if (!sizes.empty() && left != 0) return NoFrame(absl::StrCat("the payload has ", left, " bytes after its last part"));
  for (const uint32_t size : sizes) received_.parts.emplace_back(size);
  space_.clear();
  for (Buffer& part : received_.parts) space_.push_back({part.data(), part.size()});
  if (sizes.empty() && left > 0) {
    received_.parts.push_back(left <= spare_.size() ? std::move(spare_) : Buffer(left));
    space_.push_back({received_.parts[0].data(), left});
  }
  next_ = 0;
  stage_ = space_.empty() ? Stage::kDone : Stage::kPayload;
  return absl::OkStatus();
}

ReceivedFrame FrameReader::Take() {
  stage_ = Stage::kFrame;
  filled_ = 0;
  return std::exchange(received_, {});
}

void FrameReader::Recycle(ReceivedFrame frame) {
  if (frame.parts.size() == 1 && frame.parts[0].size() > spare_.size()) spare_ = std::move(frame.parts[0]);
}

void FrameWriter::Put(FrameType type, std::string header, absl::Span<const absl::Span<const uint8_t>> payload,
                      bool in_parts) {
  std::string before;
  for (const iovec& piece : absl::MakeConstSpan(left_).subspan(next_)) {
    before.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
  }
  header_ = std::move(header);
  left_.assign(2, {});
  next_ = 0;
  std::vector<uint32_t> parts;
  size_t payload_bytes = 0;
  for (const absl::Span<const uint8_t> part : payload) {
    if (part.empty()) continue;
    left_.push_back({const_cast<uint8_t*>(part.data()), part.size()});
    if (in_parts) parts.push_back(static_cast<uint32_t>(part.size()));
    payload_bytes += part.size();
  }
  if (parts.size() > kMaxFrameParts || payload_bytes > UINT32_MAX) parts.clear();
  frame_ = std::move(before) + EncodeFrame(type, header_.size(), payload_bytes, parts);
  left_[0] = {frame_.data(), frame_.size()};
  left_[1] = {header_.data(), header_.size()};
}

absl::Status FrameWriter::SendTo(ByteStream& stream) {
  while (!done()) {
    RR_ASSIGN_OR_RETURN(const size_t sent, stream.Write(absl::MakeConstSpan(left_).subspan(next_)));
    if (sent == 0) break;
    Pass(left_, next_, sent);
  }
  return absl::OkStatus();
}

}  // namespace wire
}  // namespace routing_replay
