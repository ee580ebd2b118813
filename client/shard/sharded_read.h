// Read over several channels.
#ifndef CLIENT_SHARD_SHARDED_READ_H_
#define CLIENT_SHARD_SHARDED_READ_H_

#include "absl/status/status.h"
#include "client/shard/member.h"
#include "client/shard/places.h"
#include "proto/wire/clock.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// As Run::Read in client.h, with request.run filled in. The members send at the same time; of what is not yet asked for
// each holds a few messages. A sample that cannot be had because of its server has the status UNAVAILABLE.
absl::Status ReadSharded(const MemberSet& members, Places& places, const Geometry& geometry, const ReadRequest& request,
                         ReadSink& sink, Clock::Time deadline);

}  // namespace routing_replay::client

#endif  // CLIENT_SHARD_SHARDED_READ_H_
