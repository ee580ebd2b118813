#include "proto/wire/payload/text_form.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/wire/payload/narrow.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

constexpr char kMagic[] = "nrlre1";
constexpr size_t kMaxHeadBytes = 128;  // Of the three fields before the base64.
constexpr char kBase85[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";

absl::StatusOr<std::vector<int64_t>> ParseAxes(absl::string_view text) {
  std::vector<int64_t> shape;
  for (const absl::string_view word : absl::StrSplit(text, 'x')) {
    int64_t axis = 0;
    const bool digits =
        !word.empty() && std::all_of(word.begin(), word.end(), [](char c) { return absl::ascii_isdigit(c); });
    if (!digits || !absl::SimpleAtoi(word, &axis)) {
      return Invalid(Reason::kShape, "payload", absl::StrCat("nrlre1: \"", text, "\" is not <rows>x<layers>x<K>"));
    }
    shape.push_back(axis);
  }
  if (shape.size() == 3) return shape;
  return Invalid(Reason::kShape, "payload", absl::StrCat("nrlre1: ", shape.size(), " axes, not 3"));
}

constexpr std::array<uint8_t, 256> MakeValues() {
  std::array<uint8_t, 256> values{};
  for (auto& value : values) value = 255;
  for (uint8_t i = 0; i < 85; ++i) values[static_cast<unsigned char>(kBase85[i])] = i;
  return values;
}
constexpr std::array<uint8_t, 256> kValues = MakeValues();

}  // namespace

absl::StatusOr<TextForm> OpenNrlre1(absl::Span<const uint8_t> text) {
  const absl::string_view head(reinterpret_cast<const char*>(text.data()), std::min(text.size(), kMaxHeadBytes));
  const std::vector<absl::string_view> parts = absl::StrSplit(head, absl::MaxSplits(':', 3));
  if (parts.size() != 4 || parts[0] != kMagic) {
    return Invalid(Reason::kEncoding, "payload", "is not nrlre1:<dtype>:<rows>x<layers>x<K>:<base64>");
  }
  const auto dtype = DTypeFromName(parts[1]);
  if (!dtype.ok() || (*dtype != DType::kI8 && *dtype != DType::kI16 && *dtype != DType::kI32)) {
    return Invalid(Reason::kDType, "payload", absl::StrCat("nrlre1: \"", parts[1], "\" is not int8, int16 or int32"));
  }
  auto shape = ParseAxes(parts[2]);
  if (!shape.ok()) return shape.status();
  TextForm form;
  form.tensor = {.encoding = Encoding::kBase64, .dtype = *dtype, .shape = *std::move(shape)};
  form.data = text.subspan(parts[3].data() - head.data());
  return form;
}

absl::StatusOr<DType> DTypeFromName(absl::string_view name) {
  static constexpr struct {
    const char* name;
    DType dtype;
  } kNames[] = {{"uint8", DType::kU8},  {"int8", DType::kI8},   {"uint16", DType::kU16},
                {"int16", DType::kI16}, {"int32", DType::kI32}, {"int64", DType::kI64}};
  for (const auto& known : kNames) {
    if (name == known.name) return known.dtype;
  }
  return Invalid(Reason::kDType, "append.tensor.dtype",
                 absl::StrCat("\"", name, "\" is not one of uint8, int8, uint16, int16, int32, int64"));
}

absl::Status CheckNarrowestDType(const TensorView& tensor) {
  int64_t largest = 0;
  for (int64_t i = 0; i < tensor.rows * tensor.row_elements(); ++i) {
    const int64_t id = ElementAt(tensor.dtype, tensor.elements.data(), i);
    if (id < 0) return Invalid(Reason::kIdRange, "payload", absl::StrCat("expert id ", id, " is below 0"));
    largest = std::max(largest, id);
  }
  const DType expected = largest <= UINT8_MAX ? DType::kU8 : largest <= INT16_MAX ? DType::kI16 : DType::kI32;
  if (tensor.dtype == expected) return absl::OkStatus();
  return Invalid(Reason::kDType, "append.tensor.dtype", absl::StrCat("is not the one for ids up to ", largest));
}

absl::StatusOr<Buffer> DecodeBase85(absl::Span<const uint8_t> text) {
  const size_t groups = (text.size() + 4) / 5;
  const size_t padding = 5 * groups - text.size();
  if (padding == 4) return Invalid(Reason::kEncoding, "payload", absl::StrCat("base85: length ", text.size()));
  Buffer bytes(4 * groups - padding);
  for (size_t group = 0; group < groups; ++group) {
    uint64_t number = 0;
    for (size_t i = 5 * group; i < 5 * group + 5; ++i) {
      const uint8_t value = i < text.size() ? kValues[text[i]] : 84;
      if (value == 255) {
        return Invalid(
            Reason::kEncoding, "payload",
            absl::StrCat("base85: byte 0x", absl::Hex(text[i], absl::kZeroPad2), " at ", i, " is not of the alphabet"));
      }
      number = number * 85 + value;
    }
    if (number > UINT32_MAX) {
      return Invalid(Reason::kEncoding, "payload", absl::StrCat("base85: the group at ", 5 * group, " is too large"));
    }
    for (size_t i = 0; i < 4 && 4 * group + i < bytes.size(); ++i) {
      bytes.data()[4 * group + i] = static_cast<uint8_t>(number >> (24 - 8 * i));
    }
  }
  return bytes;
}

}  // namespace wire
}  // namespace routing_replay
