// The command that compares two records of routes.
#ifndef CLIENT_RRCTL_COMPARE_DIFF_H_
#define CLIENT_RRCTL_COMPARE_DIFF_H_

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "client/rrctl/progress.h"
#include "client/rrctl/table.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

struct DiffOptions {
  std::string run;  // That both are of; empty: A and B are each "RUN:SAMPLE".
  std::string a;
  std::string b;  // Empty: what the trainer recorded of A (R2), against what the rollout engine did (R3).
  Producer producer = Producer::kRollout;                        // Of both, where B is given.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // Of one portion.
};

// Before a server is asked: INVALID_ARGUMENT (field --run) where A or B cannot be read as a sample of a run.
absl::Status CheckNames(const DiffOptions& options);

// An object:
//   "equal"; "a", "b": {"run", "sample", "producer", "rows", "recorded_rows", "tokens", "engine"}
//   "same_tokens": whether the token checks of both agree, null where they do not say
//   "compared_rows", "rows_only_in_a", "rows_only_in_b", "differing_rows", "differing_layers"
//   "order_only", "other_experts", "no_common_expert": choices (a row in a layer), the last among the second
//   "first": {"row", "layer", "what", "a", "b"}, null where nothing differs
//   "layers": [{"layer", "choices", "order_only", "other_experts", "no_common_expert", "replaced_ids"}], those that
//   differ.
// Errors of CheckNames, NOT_FOUND for what is not there, INVALID_ARGUMENT for runs of two geometries, errors of
// ReadPortion.
absl::StatusOr<Document> Diff(Client& client, const DiffOptions& options, const ShowProgress& progress);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_COMPARE_DIFF_H_
