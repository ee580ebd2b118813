// The commands that move a whole run: to a directory, from one, and through this process for its checksums.
#ifndef CLIENT_RRCTL_TRANSFER_H_
#define CLIENT_RRCTL_TRANSFER_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/rrctl/progress.h"
#include "client/rrctl/table.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

struct TransferOptions {
  std::string run;  // For an import empty: the name in the directory.
  std::string directory;
  std::optional<std::pair<int64_t, int64_t>> groups;
  Producer producer = Producer::kRollout;
  bool drop_missing = false;
  bool checkpoint = false;
};

// Objects. Errors of ExportRun, ImportRun and VerifyRun (routing_replay/checkpoint.h) and of Client::JoinRun.
absl::StatusOr<Document> ExportToDirectory(Client& client, const TransferOptions& options,
                                           const ShowProgress& progress);
absl::StatusOr<Document> ImportFromDirectory(Client& client, const TransferOptions& options,
                                             const ShowProgress& progress);
// {"run", "samples", "rows", "read_bytes", "damaged": [{"sample", "row", "layer", "what"}]}; row and layer are null
// where nobody can tell.
absl::StatusOr<Document> Verify(Client& client, const TransferOptions& options, const ShowProgress& progress);
// The same of `options.directory`, without a server.
absl::StatusOr<Document> VerifyDirectory(const TransferOptions& options, const ShowProgress& progress);
// "/x", "./x", "../x", "." and "..": on the command line a directory, where a run could be meant.
bool IsDirectoryName(absl::string_view name);

// What Verify found as an error: DATA_LOSS (kChecksum) with the first damaged sample, OK if there is none.
absl::Status DamageOf(const Document& verified);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_TRANSFER_H_
