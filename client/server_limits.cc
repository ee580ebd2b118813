#include "client/server_limits.h"

#include <algorithm>

namespace routing_replay::client {
namespace {

// What is assumed of a server that does not say.
constexpr int64_t kDefaultMessageBytes = int64_t{4} << 20;
constexpr int64_t kDefaultPayloadBytes = int64_t{256} << 20;
constexpr uint64_t kMaxLimit = uint64_t{1} << 40;

int64_t StatedOr(uint64_t value, int64_t otherwise) {
  return value == 0 ? otherwise : static_cast<int64_t>(std::min(value, kMaxLimit));
}

}  // namespace

ServerLimits LimitsFrom(uint64_t max_message_bytes, uint64_t max_payload_bytes) {
  return {StatedOr(max_message_bytes, kDefaultMessageBytes), StatedOr(max_payload_bytes, kDefaultPayloadBytes)};
}

}  // namespace routing_replay::client
