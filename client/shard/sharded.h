// The parts of a run that differ if its samples are spread over several servers.
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

// An appender over all servers. `runs`: the run by place, with sequence numbers that are congruent to the place modulo
// the number of servers.
std::unique_ptr<Appender> MakeShardedAppender(std::shared_ptr<const Servers> servers, std::vector<AppenderRun> runs,
                                              AppenderOptions options);

// Run::Read of client.h, with request.run filled in. The servers send at the same time, each to a thread that passes
// its samples to the sink when it is their turn. Samples of a server that is away get the status UNAVAILABLE.
absl::Status ReadSharded(const Servers& servers, const Geometry& geometry, const ReadRequest& request, ReadSink& sink,
                         Clock::Time deadline);

}  // namespace routing_replay::client

#endif  // CLIENT_SHARD_SHARDED_H_
