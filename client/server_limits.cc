#include "client/server_limits.h"

#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

// What is assumed of a server that does not say.
constexpr int64_t kDefaultMessageBytes = int64_t{4} << 20;
constexpr int64_t kDefaultPayloadBytes = int64_t{256} << 20;
constexpr uint64_t kMaxLimit = uint64_t{1} << 40;

int64_t StatedOr(uint64_t value, int64_t otherwise) {
  return value == 0 ? otherwise : static_cast<int64_t>(std::min(value, kMaxLimit));
}

// The part of "major.minor.patch" before the first dot; nothing for what is not a version.
std::optional<int> Major(absl::string_view version) {
  int major = 0;
  if (!absl::SimpleAtoi(version.substr(0, version.find('.')), &major)) return std::nullopt;
  return major;
}

}  // namespace

ServerLimits LimitsFrom(uint64_t max_message_bytes, uint64_t max_payload_bytes) {
  return {StatedOr(max_message_bytes, kDefaultMessageBytes), StatedOr(max_payload_bytes, kDefaultPayloadBytes)};
}

absl::Status CheckServerVersion(absl::string_view server_version) {
  const std::optional<int> theirs = Major(server_version);
  if (!theirs || theirs == Major(ROUTING_REPLAY_VERSION)) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("a server of version ", server_version, " and a client of version ",
                                ROUTING_REPLAY_VERSION, " do not understand each other"),
                   {.reason = Reason::kVersionMismatch,
                    .server_version = std::string(server_version),
                    .client_version = ROUTING_REPLAY_VERSION});
}

}  // namespace routing_replay::client
