// The Client of client.h over several servers.
#ifndef CLIENT_SHARD_SHARDED_CLIENT_H_
#define CLIENT_SHARD_SHARDED_CLIENT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// Of an endpoint "shard:…". INVALID_ARGUMENT as ShardMembers::Parse.
absl::StatusOr<std::unique_ptr<Client>> ConnectSharded(const ClientOptions& options);

}  // namespace routing_replay::client

#endif  // CLIENT_SHARD_SHARDED_CLIENT_H_
