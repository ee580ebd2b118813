#include "proto/wire/payload/encoding.h"

#include <zstd.h>

#include <array>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

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
    // Writes four bytes; the next group overwrites the fourth. The last full group has no room for it.
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
  // A skippable frame has content size 0 and is longer than ZSTD_findFrameCompressedSize reports: the length check
  // rejects both cases.
  if (ZSTD_findFrameCompressedSize(frame.data(), frame.size()) != frame.size() || frame.size() < 4 ||
      (frame[0] & 0xF0) == 0x50) {
    return Malformed(Reason::kEncoding, "payload", "the payload must be exactly one frame");
  }
  if (ZSTD_getDictID_fromFrame(frame.data(), frame.size()) != 0) {
    return Malformed(Reason::kEncoding, "payload", "the frame needs a dictionary");
  }
  Buffer raw(raw_size);
  const size_t written = ZSTD_decompress(raw.data(), raw.size(), frame.data(), frame.size());
  if (ZSTD_isError(written)) return Malformed(Reason::kEncoding, "payload", ZSTD_getErrorName(written));
  if (written != raw.size())
    return Malformed(Reason::kLength, "payload", "the data is shorter than the frame's content size");
  return raw;
}

}  // namespace wire
}  // namespace routing_replay
