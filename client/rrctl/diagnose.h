// The commands about trainers' layouts. What they answer is described in trainer_plugin/layout/explain_json.h.
#ifndef CLIENT_RRCTL_DIAGNOSE_H_
#define CLIENT_RRCTL_DIAGNOSE_H_

#include <chrono>
#include <istream>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/rrctl/table.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

struct DiagnoseOptions {
  std::string run;  // Whose rows the trainer replayed; empty: the description says what was seen.
  std::string ids;  // .npy or safetensors, [local rows, the rank's MoE layers, K]: what its routers replayed.
  Producer producer = Producer::kRollout;
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // Of reading one sample.
};

// Which known mistake explains the ids of the file by the samples that the description names: an array.
// NOT_FOUND or FAILED_PRECONDITION for a sample that cannot be read.
absl::StatusOr<Document> DiagnoseReplayedIds(Client& client, const DiagnoseOptions& options,
                                             absl::string_view description);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_DIAGNOSE_H_
