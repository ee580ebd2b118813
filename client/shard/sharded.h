// Appends and reads of a run whose samples are spread over several servers.
#ifndef CLIENT_SHARD_SHARDED_H_
#define CLIENT_SHARD_SHARDED_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "client/appender/appender.h"
#include "client/shard/servers.h"
#include "proto/wire/clock.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// Makes an appender over all servers. `runs`: the run on each server, in the order of `servers`. The sequence numbers
// of runs[i] must be i modulo the number of servers, because the appender finds a server by this remainder.
std::unique_ptr<Appender> MakeShardedAppender(std::shared_ptr<const Servers> servers, std::vector<AppenderRun> runs,
                                              AppenderOptions options);

// Run::Read of client.h, with request.run filled in. All servers send at the same time, each to its own thread, which
// passes samples to the sink in the order of the request. Samples of an unreachable server get the status UNAVAILABLE,
// those of a server that has lost the run NOT_FOUND.
absl::Status ReadSharded(const Servers& servers, const Geometry& geometry, const ReadRequest& request, ReadSink& sink,
                         Clock::Time deadline);

}  // namespace routing_replay::client

#endif  // CLIENT_SHARD_SHARDED_H_
