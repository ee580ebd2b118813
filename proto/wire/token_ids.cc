#include "proto/wire/token_ids.h"

#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

static_assert(std::endian::native == std::endian::little);

absl::Status Rejected(const TokenArray& description, Reason reason, absl::string_view what) {
  return Invalid({.reason = reason, .field = description.field, .sample = description.sample}, what);
}

template <typename T>
absl::StatusOr<Buffer> Narrow(const TokenArray& description) {
  const absl::Span<const uint8_t> bytes = description.bytes;
  if (bytes.size() % sizeof(T) != 0)
    return Rejected(description, Reason::kLength, "must be whole ids: the last one is incomplete");
  const size_t count = bytes.size() / sizeof(T);
  Buffer ids(count * sizeof(uint32_t));
  for (size_t i = 0; i < count; ++i) {
    T id;
    memcpy(&id, bytes.data() + i * sizeof(T), sizeof(T));
    if (std::cmp_less(id, 0) || std::cmp_greater(id, std::numeric_limits<uint32_t>::max())) {
      return Rejected(description, Reason::kField,
                      absl::StrCat(id, " at position ", i, " does not fit a 32-bit token id"));
    }
    const auto narrow = static_cast<uint32_t>(id);
    memcpy(ids.data() + i * sizeof(narrow), &narrow, sizeof(narrow));
  }
  return ids;
}

}  // namespace

absl::StatusOr<Buffer> TokenIds(const TokenArray& array) {
  if (array.axes != 1) {
    return Rejected(array, Reason::kShape, absl::StrCat("has ", array.axes, " axes, must have exactly one"));
  }
  if (array.bytes.empty()) return Rejected(array, Reason::kLength, "is empty; pass no tokens if they are not known");
  const std::string& dtype = array.dtype;
  if (dtype == "uint8") return Narrow<uint8_t>(array);
  if (dtype == "int8") return Narrow<int8_t>(array);
  if (dtype == "uint16") return Narrow<uint16_t>(array);
  if (dtype == "int16") return Narrow<int16_t>(array);
  if (dtype == "uint32") return Narrow<uint32_t>(array);
  if (dtype == "int32") return Narrow<int32_t>(array);
  if (dtype == "uint64") return Narrow<uint64_t>(array);
  if (dtype == "int64") return Narrow<int64_t>(array);
  return Rejected(array, Reason::kDType, absl::StrCat(dtype, " must be an integer dtype"));
}

}  // namespace wire
}  // namespace routing_replay
