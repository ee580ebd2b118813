// The Run of client.h over several servers.
#ifndef CLIENT_SHARD_SHARDED_RUN_H_
#define CLIENT_SHARD_SHARDED_RUN_H_

#include <memory>
#include <string>

#include "client/run.h"
#include "client/shard/member.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

void AddTo(const ReleaseOutcome& part, ReleaseOutcome& total);

// `opened`: what the members say of the run.
std::shared_ptr<Run> MakeShardedRun(std::shared_ptr<const MemberSet> members, std::string name,
                                    const OpenedRun& opened);

}  // namespace routing_replay::client

#endif  // CLIENT_SHARD_SHARDED_RUN_H_
