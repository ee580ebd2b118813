// The commands that look at what a server has, or remove it: status, ls, stat and rm.
#ifndef CLIENT_RRCTL_INSPECT_H_
#define CLIENT_RRCTL_INSPECT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/rrctl/application.h"

namespace routing_replay::client {

void AddStatus(Application& application);
void AddListAndStat(Application& application);
void AddRemove(Application& application);

// The answer of `stat RUN`: an object. NOT_FOUND (kNoRun).
absl::StatusOr<Document> DescribeRun(Client& client, const std::string& run);
// The answer of `stat RUN SAMPLE…`: an array in the order of `samples`. NOT_FOUND (kNoSample) for the first that does
// not exist.
absl::StatusOr<Document> DescribeSamples(Client& client, const std::string& run,
                                         const std::vector<std::string>& samples, Producer producer);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_INSPECT_H_
