// The commands of rrctl that look at what a server holds, or take it away. Each gives back the document to show.
#ifndef CLIENT_RRCTL_INSPECT_H_
#define CLIENT_RRCTL_INSPECT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/rrctl/table.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// An object, counters in it.
absl::StatusOr<Document> DescribeServer(Client& client);
// An array: a server of a "shard:…" endpoint each, also those that cannot be reached.
absl::StatusOr<Document> DescribeMembers(const ClientOptions& options);
// UNAVAILABLE naming those of DescribeMembers' answer that cannot be reached.
absl::Status ReachabilityOf(const Document& members);
// An array.
absl::StatusOr<Document> ListRuns(Client& client);
// An object. NOT_FOUND (kNoRun).
absl::StatusOr<Document> DescribeRun(Client& client, const std::string& run);
// An array.
absl::StatusOr<Document> ListSamples(Client& client, const std::string& run, Producer producer);
// An array in the order of `samples`. NOT_FOUND (kNoSample) for the first that is not there.
absl::StatusOr<Document> DescribeSamples(Client& client, const std::string& run,
                                         const std::vector<std::string>& samples, Producer producer);

// "7" is group 7, "3:17" groups 3 to 16. INVALID_ARGUMENT for anything else.
absl::StatusOr<std::pair<int64_t, int64_t>> ParseGroups(absl::string_view text);

// Releases the samples; without samples: drops the run. An object: what that freed.
absl::StatusOr<Document> Remove(Client& client, const std::string& run, const std::vector<std::string>& samples);
// What Remove would remove, of both producers; nothing changes.
absl::StatusOr<Document> DescribeRemoval(Client& client, const std::string& run,
                                         const std::vector<std::string>& samples);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_INSPECT_H_
