// Deterministic rows and tokens for store tests, and appends made of them.
#ifndef SERVER_STORE_CONFORMANCE_TRAJECTORY_H_
#define SERVER_STORE_CONFORMANCE_TRAJECTORY_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/store/store.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)

// The ids of one row: all MoE layers one after the other.
using RowIds = std::vector<uint16_t>;
// Recorded rows, and nothing where a row is unrecorded.
using Rows = std::vector<std::optional<RowIds>>;

// An endless sample. Equal seeds give equal tokens, or equal routes.
struct Trajectory {
  uint64_t tokens = 1;
  uint64_t routes = 1;

  uint32_t TokenAt(int64_t position) const;
  RowIds RowAt(const Geometry& geometry, int64_t row) const;
  std::string TokenIds(RowRange positions) const;  // u32 little-endian.
  uint32_t TokenCheckAt(int64_t rows) const;
};

// Describes an append; the defaults are the simplest case.
struct AppendSpec {
  std::string run = "run";
  std::string sample = "s";
  Producer producer = Producer::kRollout;
  Trajectory from;
  RowRange rows;
  std::vector<RowRange> unrecorded;
  bool token_ids = true;
  bool token_check_start = false;
  int64_t revision = 0;
  uint64_t restart_nonce = 0;
  std::optional<int64_t> group;
  int64_t weight_version = kUnknownWeightVersion;
  std::string weight_label;
  std::string engine;
  std::optional<int64_t> seal_num_tokens;
  std::optional<PrefixReference> prefix;
  Codec codec = Codec::kRaw;
  int64_t max_block_rows = std::numeric_limits<int64_t>::max();  // Blocks have at most this number of rows.
};

AppendCommand MakeAppend(const RunInfo& run, const AppendSpec& spec);
// One block of rows that need not come from a trajectory.
Block MakeBlock(const Geometry& geometry, int64_t row_start, const std::vector<RowIds>& rows, Codec codec);
// The rows of the snapshot, each plane verified against its CRC: [0, committed rows).
absl::StatusOr<Rows> RowsOf(const Geometry& geometry, const SampleSnapshot& snapshot);
// The rows that a read must return if the first `rows` rows of `from` were appended.
Rows ExpectedRows(const Geometry& geometry, const Trajectory& from, int64_t rows,
                  absl::Span<const RowRange> unrecorded = {});

}  // namespace routing_replay::testing

#endif  // SERVER_STORE_CONFORMANCE_TRAJECTORY_H_
