// When the caller of a call gives up.
#ifndef SERVER_SERVICE_CALLER_DEADLINE_H_
#define SERVER_SERVICE_CALLER_DEADLINE_H_

#include <grpcpp/server_context.h>

#include <chrono>

#include "proto/wire/clock.h"

namespace routing_replay::server {

// By Clock::Real(); in a hundred years where none was stated.
inline Clock::Time CallerDeadline(const grpc::ServerContext& call) {
  const auto now = std::chrono::system_clock::now();
  // In ms first: "for ever" less any time fits them.
  const auto ms = [](auto time) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch());
  };
  return DeadlineAfter(Clock::Real().Now(), ms(call.deadline()) - ms(now));
}

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_CALLER_DEADLINE_H_
