// `rrctl report`: what the routes of a run show, in numbers and as one HTML page.
#ifndef CLIENT_RRCTL_REPORT_H_
#define CLIENT_RRCTL_REPORT_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/rrctl/application.h"

namespace routing_replay::client {

void AddReport(Application& application);

struct ReportOptions {
  std::string run;
  int64_t samples = 64;                                          // Whose rows are read, at most.
  uint64_t seed = 1;                                             // Of the choice.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // Of one portion.
};

// Of the rollout's rows; exact, except what is of the samples that were read:
//   "run"      as `rrctl stat RUN`
//   "load"     [{"layer", "rows", "experts", "unused", "busiest", "busiest_count", "max_to_mean", "entropy", "counts"}]
//              of the read samples, a layer each
//   "samples"  {"all", "read", "seed", "damaged": [{"sample", "error"}]}
//   "groups"   [{"begin", "end", "samples", "rows", "unrecorded_rows", "lost_rows", "layers": [{"max_to_mean",
//              "entropy"}]}], groups in order, neighbours together where there are many; rows are committed ones and
//              lost ones, of all samples; layers are of the read ones
//   "weight_versions"  [{"label", "rows", "layers": as above}] of the read samples, by version
//   "neighbours"  [{"layer", "pairs", "shared", "expected"}] of the read samples: the share of a row's experts that the
//              next row chose too, and, by "load", the share that two randomly drawn rows of the run have in common
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

// The report as one HTML file that needs nothing else: no network, no other file. `made` says when, in words. The page
// (report.html) draws itself from the JSON in it.
extern const char kReportTemplate[];  // report.html as it was when this was built.
std::string RenderReport(const Document& report, const std::string& made);

// Writes the file, or nothing: a file of that name is replaced once the new one is whole. INVALID_ARGUMENT where it
// cannot be written, DATA_LOSS where the disk does not take it.
absl::Status WriteFile(const std::string& path, absl::string_view bytes);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_REPORT_H_
