#include "proto/wire/payload/tensor_view.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/wire/payload/narrow.h"
#include "proto/wire/payload/npy.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay {
inline namespace wire {
namespace {

constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint32_t kBad = uint32_t{1} << 31;

// table[i][c]: the value that character c at position i of a group of four adds to the three bytes, as a little-endian
// number.
using Tables = std::array<std::array<uint32_t, 256>, 4>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (auto& table : tables) table.fill(kBad);
  for (uint32_t value = 0; value < 64; ++value) {
    const auto c = static_cast<unsigned char>(kAlphabet[value]);
    tables[0][c] = value << 2;
    tables[1][c] = value >> 4 | (value & 15) << 12;
    tables[2][c] = (value >> 2) << 8 | (value & 3) << 22;
    tables[3][c] = value << 16;
  }
  return tables;
}
constexpr Tables kTables = MakeTables();

uint32_t DecodeGroup(const uint8_t* c) {
  return kTables[0][c[0]] | kTables[1][c[1]] | kTables[2][c[2]] | kTables[3][c[3]];
}

absl::Status Malformed(absl::string_view what) {
  return Invalid(Reason::kEncoding, "payload", absl::StrCat("base64: ", what));
}

absl::Status BadCharacter(absl::Span<const uint8_t> text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (kTables[0][text[i]] == kBad) {
      return Malformed(
          absl::StrCat("byte 0x", absl::Hex(text[i], absl::kZeroPad2), " at ", i, " is not in the base64 alphabet"));
    }
  }
  return Malformed("a byte is not in the base64 alphabet");
}

// Decodes the last group, which may end in "=" or "==", into `out`.
absl::Status DecodeLast(absl::Span<const uint8_t> text, size_t padding, uint8_t* out) {
  uint8_t group[4];
  std::memcpy(group, text.data() + text.size() - 4, 4);
  for (size_t i = 4 - padding; i < 4; ++i) group[i] = 'A';
  const uint32_t bits = DecodeGroup(group);
  if ((bits & kBad) != 0) return BadCharacter(text.subspan(0, text.size() - padding));
  if (bits >> (8 * (3 - padding)) != 0) return Malformed("unused bits of the last character are not zero");
  std::memcpy(out, &bits, 3 - padding);
  return absl::OkStatus();
}

absl::Status Malformed(Reason reason, absl::string_view field, absl::string_view what) {
  return Invalid(reason, field, absl::StrCat("zstd: ", what));
}

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
                   absl::StrCat(text, ": axis ", i, " has size ", shape[i], ", which is not in 0 … ", limits[i]));
  }
  return absl::OkStatus();
}

// How much base64 text is decoded to read a .npy header: a multiple of four, and enough for the longest header.
constexpr size_t kBase64HeadBytes = 2048;

absl::StatusOr<TensorShape> NpyShape(absl::Span<const uint8_t> file) {
  RR_ASSIGN_OR_RETURN(auto header, ParseNpyHeader(file));
  return TensorShape{header.dtype, std::move(header.shape)};
}

}  // namespace

absl::StatusOr<Buffer> DecodeBase64(absl::Span<const uint8_t> text) {
  if (text.size() % 4 != 0) return Malformed(absl::StrCat("length ", text.size(), " is not a multiple of 4"));
  if (text.empty()) return Buffer();
  const size_t padding = text[text.size() - 1] != '=' ? 0 : text[text.size() - 2] != '=' ? 1 : 2;
  const size_t groups = text.size() / 4 - 1;
  Buffer bytes(3 * groups + 3 - padding);
  uint32_t seen = 0;
  for (size_t i = 0; i < groups; ++i) {
    const uint32_t bits = DecodeGroup(text.data() + 4 * i);
    seen |= bits;
    // Writes four bytes, of which the next group overwrites the fourth. The last group of this loop writes only three,
    // because the buffer may end there.
    std::memcpy(bytes.data() + 3 * i, &bits, i + 1 < groups ? 4 : 3);
  }
  if ((seen & kBad) != 0) return BadCharacter(text.subspan(0, text.size() - padding));
  RR_RETURN_IF_ERROR(DecodeLast(text, padding, bytes.data() + 3 * groups));
  return bytes;
}

absl::StatusOr<Buffer> DecompressZstd(absl::Span<const uint8_t> frame, int64_t raw_size, int64_t limit) {
  if (raw_size < 0 || raw_size > limit) {
    return Malformed(Reason::kLength, "append.tensor.raw_size",
                     absl::StrCat("raw_size must be at most ", limit, " bytes, got ", raw_size));
  }
  const unsigned long long content = ZSTD_getFrameContentSize(frame.data(), frame.size());
  if (content == ZSTD_CONTENTSIZE_ERROR)
    return Malformed(Reason::kEncoding, "payload", "the payload is not a zstd frame");
  if (content == ZSTD_CONTENTSIZE_UNKNOWN)
    return Malformed(Reason::kEncoding, "payload", "the frame does not state its content size");
  if (content != static_cast<unsigned long long>(raw_size)) {
    return Malformed(Reason::kLength, "append.tensor.raw_size",
                     absl::StrCat("raw_size is ", raw_size, " bytes, but the frame states ", content));
  }
  // Rejects bytes after the frame, and a skippable frame (first byte 0x50 to 0x5F), whose content size is reported as
  // 0.
  if (ZSTD_findFrameCompressedSize(frame.data(), frame.size()) != frame.size() || frame.size() < 4 ||
      (frame[0] & 0xF0) == 0x50) {
    return Malformed(Reason::kEncoding, "payload", "the payload must be exactly one frame");
  }
  Buffer raw(raw_size);
  const size_t written = ZSTD_decompress(raw.data(), raw.size(), frame.data(), frame.size());
  if (ZSTD_isError(written)) return Malformed(Reason::kEncoding, "payload", ZSTD_getErrorName(written));
  if (written != raw.size())
    return Malformed(Reason::kLength, "payload", "the data is shorter than the frame's content size");
  return raw;
}

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
