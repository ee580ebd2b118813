#include "server/store/redis/client/redis_error.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/redis/client/decimal.h"
#include "server/store/redis/client/slot_map.h"

namespace routing_replay::server {
namespace {

constexpr size_t kRepeatedText = 256;
constexpr int32_t kOutOfMemoryRetryMs = 1000;
constexpr absl::string_view kPassing[] = {"TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN",
                                          "READONLY", "NOREPLICAS",  "BUSY",    "UNBLOCKED"};
constexpr absl::string_view kDenied[] = {"NOAUTH", "WRONGPASS", "NOPERM"};

absl::string_view FirstWord(absl::string_view text) { return text.substr(0, text.find(' ')); }

template <size_t n>
bool IsOneOf(absl::string_view word, const absl::string_view (&words)[n]) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

// "MOVED 3999 127.0.0.1:6381", with an empty host for the server that answers, and IPv6 hosts without brackets.
std::optional<RedisError> Redirection(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  if (words.size() != 3 || (words[0] != "MOVED" && words[0] != "ASK")) return std::nullopt;
  const size_t colon = words[2].rfind(':');
  const auto slot = ParseDecimal(words[1]);
  const auto port = ParseDecimal(colon == absl::string_view::npos ? "" : words[2].substr(colon + 1));
  if (!slot || *slot >= kRedisSlots || !port || *port < 1 || *port > 65535) return std::nullopt;
  RedisError error{.kind = words[0] == "ASK" ? RedisError::Kind::kAsk : RedisError::Kind::kMoved,
                   .slot = static_cast<int>(*slot),
                   .address = {std::string(words[2].substr(0, colon)), static_cast<uint16_t>(*port)}};
  if (error.address.host == "?") error.address.host.clear();
  return error;
}

absl::StatusCode CodeOf(absl::string_view text) {
  const absl::string_view word = FirstWord(text);
  if (IsOneOf(word, kDenied)) return absl::StatusCode::kPermissionDenied;
  if (word == "OOM") return absl::StatusCode::kResourceExhausted;
  const RedisError::Kind kind = ParseRedisError(text).kind;
  const bool passes =
      kind == RedisError::Kind::kMoved || kind == RedisError::Kind::kAsk || kind == RedisError::Kind::kRetry;
  return passes || word == "MISCONF" ? absl::StatusCode::kUnavailable : absl::StatusCode::kFailedPrecondition;
}

}  // namespace

RedisError ParseRedisError(absl::string_view text) {
  if (auto redirection = Redirection(text)) return *std::move(redirection);
  const absl::string_view word = FirstWord(text);
  if (word == "NOSCRIPT") return {.kind = RedisError::Kind::kNoScript};
  return {.kind = IsOneOf(word, kPassing) ? RedisError::Kind::kRetry : RedisError::Kind::kForCaller};
}

absl::Status StatusOfRedisError(absl::string_view command, absl::string_view text) {
  const absl::StatusCode code = CodeOf(text);
  const std::string message = absl::StrCat("Redis: ", command, ": ", text.substr(0, kRepeatedText));
  if (code == absl::StatusCode::kResourceExhausted) {
    return MakeError(code, message, {.reason = Reason::kOverBudget, .retry_after_ms = kOutOfMemoryRetryMs});
  }
  return absl::Status(code, message);
}

}  // namespace routing_replay::server
