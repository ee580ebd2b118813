// Implements Run over the servers of a client.
#ifndef CLIENT_RUN_H_
#define CLIENT_RUN_H_

#include <memory>
#include <string>

#include "client/shard/servers.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// The answer of OpenRun: geometry and limits, the same for all servers.
struct OpenedRun {
  Geometry geometry;
  RunSettings settings;
  int64_t max_message_bytes = 0;
  int64_t max_payload_bytes = 0;
  ReleaseOutcome dropped;
};
std::shared_ptr<Run> MakeRun(std::shared_ptr<const Servers> servers, std::string name, const OpenedRun& opened);

}  // namespace routing_replay::client

#endif  // CLIENT_RUN_H_
