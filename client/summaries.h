// What a server says of itself and of its runs.
#ifndef CLIENT_SUMMARIES_H_
#define CLIENT_SUMMARIES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "client/caller.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// As Client::ListRuns and Client::GetServerInfo.
absl::StatusOr<std::vector<RunSummary>> CallListRuns(const Caller& caller);
absl::StatusOr<ServerSummary> CallServerInfo(const Caller& caller);

}  // namespace routing_replay::client

#endif  // CLIENT_SUMMARIES_H_
