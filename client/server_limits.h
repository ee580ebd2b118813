// What a client must know of the server that opened its run, and what it asks of it at once.
#ifndef CLIENT_SERVER_LIMITS_H_
#define CLIENT_SERVER_LIMITS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace routing_replay::client {

// Names in one request: far below any message limit.
inline constexpr size_t kMaxNamesPerCall = 10000;
// Of the Stat by which an appender asks what arrived before it sends again.
inline constexpr std::chrono::milliseconds kAskTimeout = std::chrono::seconds(5);

struct ServerLimits {
  int64_t max_message_bytes = 0;  // Of an AppendRequest.
  int64_t max_payload_bytes = 0;  // Of one append, after decompression.
};

// The limits that a server stated in OpenRunResponse; 0 where it said nothing.
ServerLimits LimitsFrom(uint64_t max_message_bytes, uint64_t max_payload_bytes);

}  // namespace routing_replay::client

#endif  // CLIENT_SERVER_LIMITS_H_
