#include "proto/wire/payload/zstd_frame.h"

#include <zstd.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

absl::Status Malformed(Reason reason, absl::string_view field, absl::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat(field, ": zstd: ", what),
                   {.reason = reason, .field = std::string(field)});
}

}  // namespace

absl::StatusOr<Buffer> DecompressZstd(absl::Span<const uint8_t> frame, int64_t raw_size, int64_t limit) {
  if (raw_size < 0 || raw_size > limit) {
    return Malformed(Reason::kLength, "append.tensor.raw_size",
                     absl::StrCat(raw_size, " bytes declared, the limit is ", limit));
  }
  const unsigned long long content = ZSTD_getFrameContentSize(frame.data(), frame.size());
  if (content == ZSTD_CONTENTSIZE_ERROR) return Malformed(Reason::kEncoding, "payload", "not a frame");
  if (content == ZSTD_CONTENTSIZE_UNKNOWN)
    return Malformed(Reason::kEncoding, "payload", "no content size in the frame");
  if (content != static_cast<unsigned long long>(raw_size)) {
    return Malformed(Reason::kLength, "append.tensor.raw_size",
                     absl::StrCat(raw_size, " bytes declared, the frame holds ", content));
  }
  // A skippable frame has content size 0 and is longer than its neighbours think: the length check takes both.
  if (ZSTD_findFrameCompressedSize(frame.data(), frame.size()) != frame.size() || frame.size() < 4 ||
      (frame[0] & 0xF0) == 0x50) {
    return Malformed(Reason::kEncoding, "payload", "not exactly one frame");
  }
  if (ZSTD_getDictID_fromFrame(frame.data(), frame.size()) != 0) {
    return Malformed(Reason::kEncoding, "payload", "the frame needs a dictionary");
  }
  Buffer raw(raw_size);
  const size_t written = ZSTD_decompress(raw.data(), raw.size(), frame.data(), frame.size());
  if (ZSTD_isError(written)) return Malformed(Reason::kEncoding, "payload", ZSTD_getErrorName(written));
  if (written != raw.size()) return Malformed(Reason::kLength, "payload", "shorter than its content size");
  return raw;
}

}  // namespace wire
}  // namespace routing_replay
