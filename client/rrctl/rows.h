// Reads the rows of one sample in portions, so that a sample of any size needs the memory of only one portion. Also has
// the commands get, which shows rows, and put, which appends the rows of a file.
#ifndef CLIENT_RRCTL_ROWS_H_
#define CLIENT_RRCTL_ROWS_H_

#include <cstdint>
#include <functional>
#include <istream>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/rrctl/application.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// Number of rows in a portion, which takes about 1 MB when it is decoded.
int64_t PortionRows(const Geometry& geometry);

// Reads the committed rows of one portion of a sample, of which some may be unrecorded. `layers`: ascending; empty: all
// MoE layers. All rows are of the revision in `state`: ABORTED (kOldRevision) if the server has another one.
// FAILED_PRECONDITION, naming the sample's status, if the sample cannot be read.
absl::StatusOr<SampleRows> ReadPortion(Run& run, const SampleState& state, RowRange portion,
                                       const std::vector<int32_t>& layers = {});

// Reads all portions of `rows` in order and passes each to `take`. Stops at the first error of `take`.
absl::Status ReadPortions(Run& run, const SampleState& state, RowRange rows, const std::vector<int32_t>& layers,
                          const std::function<absl::Status(RowRange portion, const SampleRows& rows)>& take);

// Reads all committed rows and all MoE layers of a sample into memory. Fails with the errors of ReadPortion and
// Run::Stat.
absl::StatusOr<SampleRows> ReadSample(Run& run, const std::string& sample, Producer producer);

void AddGet(Application& application);
void AddPut(Application& application);

struct GetOptions {
  std::string run;
  std::string sample;
  Producer producer = Producer::kRollout;
  std::vector<int32_t> layers;   // Global decoder layer ids; empty: all.
  std::optional<RowRange> rows;  // Absent: all.
};

// Reads in portions, so that a sample of any size needs the memory of only one, and passes each to `show` as an array
// of {"row", "layer", "experts"}, sorted by row and then by layer. "experts" is null for an unrecorded row. ABORTED if
// the sample starts a new revision meanwhile; FAILED_PRECONDITION with the sample's status if it cannot be read;
// OUT_OF_RANGE for rows after the committed ones.
absl::Status Get(Client& client, const GetOptions& options, const std::function<absl::Status(const Document&)>& show);

// All bytes of the file, or of `input` if the path is "-". NOT_FOUND; DATA_LOSS.
absl::StatusOr<std::vector<uint8_t>> ReadFile(const std::string& path, std::istream& input);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_ROWS_H_
