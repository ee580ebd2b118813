// A sample's rows in portions, so that one of any size needs the memory of one portion.
#ifndef CLIENT_RRCTL_PORTIONS_H_
#define CLIENT_RRCTL_PORTIONS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// What is read of one sample, all of one revision: ABORTED (kOldRevision) if another one than `state`'s is met.
struct PortionRead {
  SampleState state;
  std::vector<int32_t> layers;                                   // As LayersOf gives them.
  RowRange rows;                                                 // Among them unrecorded ones.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // Of one portion.
};

// `asked` in the order of a read, each once; without any, every MoE layer.
std::vector<int32_t> LayersOf(const Geometry& geometry, std::vector<int32_t> asked = {});

// Rows of a portion: some MB decoded.
int64_t PortionRows(const Geometry& geometry);

// The rows of one portion. FAILED_PRECONDITION, NOT_FOUND, DATA_LOSS or OUT_OF_RANGE with the sample's status where it
// cannot be read.
absl::StatusOr<SampleRows> ReadPortion(Run& run, const PortionRead& read, RowRange portion);

// Reads all portions in order and gives each to `take`, whose first error ends it.
absl::Status ReadPortions(Run& run, const PortionRead& read,
                          const std::function<absl::Status(RowRange portion, const SampleRows& rows)>& take);

// All committed rows and all MoE layers of a sample, in memory. Errors as of ReadPortion, and of Run::Stat.
absl::StatusOr<SampleRows> ReadSample(Run& run, const std::string& sample, Producer producer,
                                      std::chrono::milliseconds timeout);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_PORTIONS_H_
