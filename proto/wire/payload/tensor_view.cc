#include "proto/wire/payload/tensor_view.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/wire/payload/encoding.h"
#include "proto/wire/payload/narrow.h"
#include "proto/wire/payload/npy.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay {
inline namespace wire {
namespace {

bool IsBase64(Encoding encoding) { return encoding == Encoding::kBase64 || encoding == Encoding::kBase64Npy; }
bool IsNpy(Encoding encoding) { return encoding == Encoding::kNpy || encoding == Encoding::kBase64Npy; }

// Reads dtype and shape from the header, and removes the header from the elements.
absl::Status ReadNpy(const TensorDescription& description, TensorView& view, std::vector<int64_t>& shape) {
  RR_ASSIGN_OR_RETURN(auto header, ParseNpyHeader(view.elements));
  if (description.dtype != DType::kUnspecified && description.dtype != header.dtype) {
    return Invalid(Reason::kDType, "append.tensor.dtype", "differs from the dtype of the .npy header");
  }
  if (!shape.empty() && shape != header.shape) {
    return Invalid(Reason::kShape, "append.tensor.shape",
                   absl::StrCat("[", absl::StrJoin(shape, ", "), "] does not match the .npy header's [",
                                absl::StrJoin(header.shape, ", "), "]"));
  }
  view.dtype = header.dtype;
  shape = std::move(header.shape);
  view.elements.remove_prefix(header.data_offset);
  return absl::OkStatus();
}

absl::Status CheckShape(absl::Span<const int64_t> shape) {
  const std::string text = absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
  if (shape.size() != 3)
    return Invalid(Reason::kShape, "append.tensor.shape", absl::StrCat(text, " is not [rows, layers, K]"));
  const int64_t limits[] = {kMaxRows, kMaxLayers, kMaxTopK};
  for (int i = 0; i < 3; ++i) {
    if (shape[i] >= 0 && shape[i] <= limits[i]) continue;
    return Invalid(Reason::kShape, "append.tensor.shape",
                   absl::StrCat(text, ": axis ", i, " is not in 0 … ", limits[i]));
  }
  return absl::OkStatus();
}

// How much base64 text is decoded to read a .npy header: a multiple of four, and more than the longest header.
constexpr size_t kBase64HeadBytes = 2048;

absl::StatusOr<TensorShape> NpyShape(absl::Span<const uint8_t> file) {
  RR_ASSIGN_OR_RETURN(auto header, ParseNpyHeader(file));
  return TensorShape{header.dtype, std::move(header.shape)};
}

}  // namespace

absl::StatusOr<TensorView> OpenTensor(const TensorDescription& description, absl::Span<const uint8_t> payload,
                                      int64_t max_payload_bytes) {
  TensorView view{.dtype = description.dtype, .elements = payload};
  if (description.compression == Compression::kZstd) {
    RR_ASSIGN_OR_RETURN(auto raw, DecompressZstd(payload, description.raw_size, max_payload_bytes));
    view.decompressed = std::move(raw);
    view.elements = std::as_const(view.decompressed).span();
  }
  if (static_cast<int64_t>(view.elements.size()) > max_payload_bytes) {
    return Invalid(Reason::kLength, "payload",
                   absl::StrCat("must have at most ", max_payload_bytes, " bytes, got ", view.elements.size()));
  }
  if (IsBase64(description.encoding)) {
    RR_ASSIGN_OR_RETURN(auto bytes, DecodeBase64(view.elements));
    view.decoded = std::move(bytes);
    view.elements = std::as_const(view.decoded).span();
  }
  std::vector<int64_t> shape = description.shape;
  if (IsNpy(description.encoding)) {
    RR_RETURN_IF_ERROR(ReadNpy(description, view, shape));
  } else if (DTypeBytes(description.dtype) == 0) {
    return Invalid(Reason::kDType, "append.tensor.dtype", "must be given with this encoding");
  }
  RR_RETURN_IF_ERROR(CheckShape(shape));
  view.rows = shape[0];
  view.layers = shape[1];
  view.top_k = shape[2];
  // Cannot overflow: the axes are limited.
  const int64_t expected = view.rows * view.row_elements() * DTypeBytes(view.dtype);
  const int64_t size = static_cast<int64_t>(view.elements.size());
  if (expected != size) {
    // A .npy file that contradicts its own header is malformed, and so is data that ends inside an element.
    const bool malformed = IsNpy(description.encoding) || size % DTypeBytes(view.dtype) != 0;
    return Invalid(malformed ? Reason::kEncoding : Reason::kLength, "payload",
                   absl::StrCat(size, " bytes of elements, but dtype and shape require ", expected));
  }
  return view;
}

absl::Status TakeSlots(RowRange take, TensorView& view) {
  if (take.begin < 0 || take.begin > take.end || take.end > view.rows) {
    return Invalid(Reason::kField, "append.tensor.take",
                   absl::StrCat(ToString(take), " is not inside the tensor's ", view.rows, " rows"));
  }
  const int64_t row_bytes = view.row_elements() * DTypeBytes(view.dtype);
  view.elements = view.elements.subspan(take.begin * row_bytes, take.size() * row_bytes);
  view.rows = take.size();
  return absl::OkStatus();
}

absl::Status KeepIds(TensorView& view) {
  if (view.top_k % 2 != 0) {
    return Invalid(Reason::kShape, "append.tensor.shape",
                   absl::StrCat("K axis of ", view.top_k, " must be even: it has K ids, then K weights"));
  }
  view.top_k /= 2;
  const int64_t bytes = view.top_k * DTypeBytes(view.dtype);
  Buffer ids(view.rows * view.layers * bytes);
  for (int64_t i = 0; i < view.rows * view.layers; ++i) {
    std::memcpy(ids.data() + i * bytes, view.elements.data() + 2 * i * bytes, bytes);
  }
  view.decoded = std::move(ids);
  view.elements = std::as_const(view.decoded).span();
  return absl::OkStatus();
}

absl::StatusOr<TensorShape> PayloadShape(const TensorDescription& description, absl::Span<const uint8_t> payload) {
  if (!description.shape.empty()) return TensorShape{description.dtype, description.shape};
  if (description.compression == Compression::kNone && description.encoding == Encoding::kNpy) return NpyShape(payload);
  if (description.compression == Compression::kNone && description.encoding == Encoding::kBase64Npy) {
    RR_ASSIGN_OR_RETURN(const auto head,
                        DecodeBase64(payload.first(std::min<size_t>(payload.size(), kBase64HeadBytes))));
    return NpyShape(head.span());
  }
  return Invalid(Reason::kShape, "append.tensor.shape", "must be given if the payload has no readable .npy header");
}

}  // namespace wire
}  // namespace routing_replay
