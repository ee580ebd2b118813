// What a report of a run tells, in numbers.
#ifndef CLIENT_RRCTL_REPORT_GATHER_H_
#define CLIENT_RRCTL_REPORT_GATHER_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/rrctl/progress.h"
#include "client/rrctl/table.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

struct ReportOptions {
  std::string run;
  int64_t samples = 64;                                          // Whose rows are read, at most.
  uint64_t seed = 1;                                             // Of the choice.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // Of one portion.
};

// Of the rollout's rows, all exact but what is said to be of the samples that were read:
//   "run"      as `rrctl stat RUN`
//   "load"     [{"layer", "rows", "experts", "unused", "busiest", "busiest_count", "max_to_mean", "entropy", "counts"}]
//              of the read samples, a layer each
//   "samples"  {"all", "read", "seed", "damaged": [{"sample", "error"}]}
//   "groups"   [{"begin", "end", "samples", "rows", "unrecorded_rows", "lost_rows", "layers": [{"max_to_mean",
//              "entropy"}]}], groups in order, neighbours together where they are many; rows are committed ones and
//              lost ones, of all samples; layers are of the read ones
//   "weight_versions"  [{"label", "rows", "layers": as above}] of the read samples, by version
//   "neighbours"  [{"layer", "pairs", "shared", "expected"}] of the read samples: the share of a row's experts that the
//              next row chose too, and, by "load", the share that two rows of the run have in common that are drawn by
//              chance
//   "lengths"  {"samples", "median", "p99", "longest", "begin", "width", "counts"} in tokens, of an unsealed sample its
//              rows
//   "missing"  the samples that miss most, [{"sample", "group", "rows", "unrecorded_rows", "lost_rows"}], and
//   "missing_samples", how many miss any
//   "mismatch" null where the trainer recorded nothing, else {"samples", "rows", "layers": [{"layer", "choices",
//              "order_only", "other_experts", "no_common_expert", "replaced_ids"}]} of samples chosen likewise among
//              those that both producers have.
// Memory: what `rrctl ls` needs, and that of a portion. NOT_FOUND (kNoRun). Samples that cannot be read are listed and
// do not end it.
absl::StatusOr<Document> GatherReport(Client& client, const ReportOptions& options, const ShowProgress& progress);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_REPORT_GATHER_H_
