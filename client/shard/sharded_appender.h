// The Appender of client.h over several servers.
#ifndef CLIENT_SHARD_SHARDED_APPENDER_H_
#define CLIENT_SHARD_SHARDED_APPENDER_H_

#include <memory>
#include <vector>

#include "client/appender/append_plan.h"
#include "client/shard/finder.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// One appender per member that is appended to, each with an equal share of the queue: a member that does not answer
// fills its own and no other's. Sequence numbers say whose they are: those of one sample ascend, but not by 1. `runs`:
// by member; `blocks`: of all of them. A PlanAppender.
std::unique_ptr<Appender> MakeShardedAppender(std::shared_ptr<Finder> finder, std::vector<std::shared_ptr<Run>> runs,
                                              const BlockOptions& blocks, AppenderOptions options);

}  // namespace routing_replay::client

#endif  // CLIENT_SHARD_SHARDED_APPENDER_H_
