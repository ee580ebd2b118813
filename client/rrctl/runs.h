// The commands about whole runs and samples: status, ls, stat and rm; export to a directory and import from one;
// verify, which checks the checksums of a run or of a directory.
#ifndef CLIENT_RRCTL_RUNS_H_
#define CLIENT_RRCTL_RUNS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/rrctl/application.h"

namespace routing_replay::client {

void AddStatus(Application& application);
void AddListAndStat(Application& application);
void AddRemove(Application& application);
void AddTransfers(Application& application);

// The answer of `stat RUN`: an object. NOT_FOUND (kNoRun).
absl::StatusOr<Document> DescribeRun(Client& client, const std::string& run);
// The answer of `stat RUN SAMPLE…`: an array in the order of `samples`. NOT_FOUND (kNoSample) for the first that does
// not exist.
absl::StatusOr<Document> DescribeSamples(Client& client, const std::string& run,
                                         const std::vector<std::string>& samples, Producer producer);

struct TransferOptions {
  std::string run;  // If empty, an import uses the name in the directory.
  std::string directory;
  Groups groups;
  Producer producer = Producer::kRollout;
  std::string previous;  // For an export: the directory of an earlier one.
};

// Each command returns its counts as an object. It fails with the errors of ExportRun, ImportRun or VerifyRun
// (routing_replay/checkpoint.h), or of Client::JoinRun.
absl::StatusOr<Document> ExportToDirectory(Client& client, const TransferOptions& options);
absl::StatusOr<Document> ImportFromDirectory(Client& client, const TransferOptions& options);
// {"run", "samples", "rows", "read_bytes", "damaged": [{"sample", "row", "layer", "what"}]}; row and layer are null if
// unknown.
absl::StatusOr<Document> Verify(Client& client, const TransferOptions& options);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_RUNS_H_
