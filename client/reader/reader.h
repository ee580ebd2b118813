// Reads rows from the server of a link.
#ifndef CLIENT_READER_READER_H_
#define CLIENT_READER_READER_H_

#include <chrono>

#include "absl/status/status.h"
#include "client/channel/link.h"
#include "proto/wire/clock.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// Run::Read of client.h, with request.run filled in. Retries a failed server until nothing has arrived for `patience`.
absl::Status ReadInto(Link& link, const Geometry& geometry, const ReadRequest& request, ReadSink& sink,
                      Clock::Time deadline, std::chrono::milliseconds patience = std::chrono::milliseconds::max());
}  // namespace routing_replay::client

#endif  // CLIENT_READER_READER_H_
