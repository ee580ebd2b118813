// Waiting for sockets under a deadline.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_WAIT_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_WAIT_H_

#include <poll.h>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/wire/clock.h"

namespace routing_replay::server {

struct RedisWait {
  Clock::Time deadline;
  const Clock* clock = &Clock::Real();
  // If not -1: the wait ends when this can be read.
  int interrupt_fd = -1;
};

// Until one of `sockets` has an event (then in its revents), the deadline (DEADLINE_EXCEEDED) or the interruption
// (CANCELLED). The first look never waits: what is there already is found even after the deadline.
absl::Status WaitForSockets(absl::Span<pollfd> sockets, const RedisWait& wait);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_WAIT_H_
