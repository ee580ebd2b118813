// Pipelines to several servers, all moving at the same time on the caller's thread.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_EXCHANGE_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_EXCHANGE_H_

#include <vector>

#include "absl/status/status.h"
#include "server/store/redis/client/redis_connection.h"

namespace routing_replay::server {

struct RedisExchange {
  RedisConnection* connection;                // Alive, with nothing due.
  std::vector<const RedisCommand*> commands;  // They outlive the connection, or it is closed after an error.

  // Replies to the first commands, in order; fewer than commands only if `status` is an error.
  std::vector<RedisReply> replies;
  // UNAVAILABLE: the connection was lost, or silent for longer than the response timeout; DEADLINE_EXCEEDED; DATA_LOSS.
  absl::Status status;
  // Commands that were written whole; the rest were not executed.
  size_t written = 0;
};

struct RedisExchangeLimits {
  // Commands of one exchange whose answers are due at the same time. A server keeps all answers that were not fetched
  // in its memory, so that this bounds it.
  size_t in_flight = 32;
  Clock::Duration response_timeout;
};

// Returns when each exchange is complete or has failed. A failed one leaves its connection dead, or with answers due.
void RunRedisExchanges(absl::Span<RedisExchange> exchanges, const RedisExchangeLimits& limits, const RedisWait& wait);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_EXCHANGE_H_
