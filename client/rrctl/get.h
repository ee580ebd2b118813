// The command that shows a sample's expert ids.
#ifndef CLIENT_RRCTL_GET_H_
#define CLIENT_RRCTL_GET_H_

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/rrctl/table.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

struct GetOptions {
  std::string run;
  std::string sample;
  Producer producer = Producer::kRollout;
  std::vector<int32_t> layers;                                   // Global decoder layer ids; empty: all.
  std::optional<RowRange> rows;                                  // Absent: all.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // Of one portion.
};

// Reads in portions of some MB, so that a sample of any size needs the memory of one, and gives each to `show` as an
// array of {"row", "layer", "experts"}, rows ascending and layers ascending in a row; "experts" is null for an
// unrecorded row. ABORTED if the sample begins a new life (revision) meanwhile; FAILED_PRECONDITION with the sample's
// status where it cannot be read; OUT_OF_RANGE for rows behind the committed ones.
absl::Status Get(Client& client, const GetOptions& options, const std::function<absl::Status(const Document&)>& show);

// All committed rows and all MoE layers of a sample, in memory. Errors as of Get.
absl::StatusOr<SampleRows> ReadSample(Run& run, const std::string& sample, Producer producer,
                                      std::chrono::milliseconds timeout);

// "3:17" → rows [3, 17); "5" → row 5.
absl::StatusOr<RowRange> ParseRows(absl::string_view text);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_GET_H_
