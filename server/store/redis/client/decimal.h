// Numbers as the protocol writes them.
#ifndef SERVER_STORE_REDIS_CLIENT_DECIMAL_H_
#define SERVER_STORE_REDIS_CLIENT_DECIMAL_H_

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

namespace routing_replay::server {

// Digits and nothing else, without a leading zero: absl::SimpleAtoi also takes signs and white space.
inline std::optional<int64_t> ParseDecimal(absl::string_view text) {
  int64_t value = 0;
  if (!std::all_of(text.begin(), text.end(), absl::ascii_isdigit) || !absl::SimpleAtoi(text, &value)) return {};
  if (text.size() > 1 && text[0] == '0') return {};
  return value;
}

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_DECIMAL_H_
