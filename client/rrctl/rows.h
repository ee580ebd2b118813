// The commands that move rows of one sample: get shows them, put appends those of a file.
#ifndef CLIENT_RRCTL_ROWS_H_
#define CLIENT_RRCTL_ROWS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <istream>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/rrctl/application.h"

namespace routing_replay::client {

void AddGet(Application& application);
void AddPut(Application& application);

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
// unrecorded row. ABORTED if the sample starts a new revision meanwhile; FAILED_PRECONDITION with the sample's status
// where it cannot be read; OUT_OF_RANGE for rows after the committed ones.
absl::Status Get(Client& client, const GetOptions& options, const std::function<absl::Status(const Document&)>& show);

// All bytes of the file, of `input` where the path is "-". NOT_FOUND; DATA_LOSS; INVALID_ARGUMENT for more than an
// append may have.
absl::StatusOr<std::vector<uint8_t>> ReadFile(const std::string& path, std::istream& input);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_ROWS_H_
