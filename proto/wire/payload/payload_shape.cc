#include "proto/wire/payload/payload_shape.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/payload/base64.h"
#include "proto/wire/payload/narrow.h"
#include "proto/wire/payload/npy.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay {
inline namespace wire {
namespace {

// Base64 text of more bytes than a .npy header may have; whole groups of four.
constexpr size_t kBase64HeadBytes = 2048;

absl::StatusOr<TensorShape> NpyShape(absl::Span<const uint8_t> file) {
  auto header = ParseNpyHeader(file);
  if (!header.ok()) return header.status();
  return TensorShape{header->dtype, std::move(header->shape)};
}

}  // namespace

absl::StatusOr<TensorShape> PayloadShape(const TensorDescription& description, absl::Span<const uint8_t> payload) {
  if (!description.shape.empty()) return TensorShape{description.dtype, description.shape};
  if (description.compression == Compression::kNone && description.encoding == Encoding::kNpy) return NpyShape(payload);
  if (description.compression == Compression::kNone && description.encoding == Encoding::kBase64Npy) {
    const auto head = DecodeBase64(payload.first(std::min<size_t>(payload.size(), kBase64HeadBytes)));
    if (!head.ok()) return head.status();
    return NpyShape(head->span());
  }
  return Invalid(Reason::kShape, "append.tensor.shape",
                 "must be stated for a payload that has no .npy header that can be looked at");
}

absl::StatusOr<int64_t> FlatRows(const TensorDescription& description, int64_t layers, int64_t top_k,
                                 absl::Span<const uint8_t> payload) {
  const bool base64 = description.encoding == Encoding::kBase64;
  if ((!base64 && description.encoding != Encoding::kRaw) || description.compression != Compression::kNone) {
    return Invalid(Reason::kField, "append.tensor.encoding", "is not that of flat elements");
  }
  if (DTypeBytes(description.dtype) == 0) return Invalid(Reason::kDType, "append.tensor.dtype", "must be stated");
  if (layers < 1 || layers > kMaxLayers || top_k < 1 || top_k > kMaxTopK) {
    return Invalid(Reason::kShape, "append.tensor.shape", absl::StrCat("rows of [", layers, ", ", top_k, "]"));
  }
  auto bytes = static_cast<int64_t>(payload.size());
  if (base64) {
    if (bytes % 4 != 0) {
      return Invalid(Reason::kEncoding, "payload", absl::StrCat("base64: length ", bytes, " is not a multiple of 4"));
    }
    const auto padding = std::count(payload.end() - std::min<size_t>(2, payload.size()), payload.end(), '=');
    bytes = bytes / 4 * 3 - padding;
  }
  const int64_t row_bytes = layers * top_k * DTypeBytes(description.dtype);
  if (bytes % row_bytes == 0) return bytes / row_bytes;
  if (bytes % DTypeBytes(description.dtype) != 0) {
    return Invalid(Reason::kEncoding, "payload", absl::StrCat(bytes, " bytes end inside an element"));
  }
  return Invalid(Reason::kLength, "payload",
                 absl::StrCat(bytes, " bytes are not whole rows of ", layers, " layers and ", top_k, " ids, ",
                              row_bytes, " bytes each"));
}

}  // namespace wire
}  // namespace routing_replay
