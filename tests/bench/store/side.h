// One side of a comparison: a store, or the bare engine that it is built on.
#ifndef TESTS_BENCH_STORE_SIDE_H_
#define TESTS_BENCH_STORE_SIDE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "routing_replay/wire/sample.h"
#include "server/admission/byte_budget.h"
#include "server/store/store.h"
#include "tests/bench/store/workload.h"

namespace routing_replay::bench {

using namespace server;  // NOLINT(google-build-using-namespace)

// Used by one thread, which starts kStoreCallers caller threads in Append, Read and Check.
class Side {
 public:
  virtual ~Side() = default;
  // Empties the side and prepares the appends of the next round.
  virtual absl::Status Begin(int32_t blocks_per_append) = 0;
  // Appends all blocks, with `blocks_per_append` blocks per call. Each caller waits for its call before the next one.
  virtual absl::Status Append(int32_t blocks_per_append) = 0;
  // Reads every sample as a whole.
  virtual absl::Status Read() = 0;
  // DATA_LOSS if the blocks read differ from the blocks appended.
  virtual absl::Status Check() = 0;
  // Ends all work in the background.
  virtual absl::Status End() = 0;
};

absl::Status Differs(absl::string_view side, int32_t sample, int32_t block);

// Creates an empty store. A side asks for a new one in each round, so that all rounds begin with the same state.
using MakeStore = std::function<absl::StatusOr<std::unique_ptr<Store>>()>;

struct StoreSideOptions {
  std::string name;
  std::optional<Durability> durability;
  // If true, the store keeps the memory that the caller filled; then filling it is part of the append, and a read
  // copies it out.
  bool in_memory = false;
};
// `workload` must outlive all sides.
std::unique_ptr<Side> NewStoreSide(const Workload& workload, StoreSideOptions options, MakeStore make,
                                   ByteBudget& budget);

// Only memcpy, as a bound for the stores: into memory whose pages exist already, and out of it.
std::unique_ptr<Side> NewMemcpySide(const Workload& workload);
// Writes the same values to a database with the same options, one batch per append, and reads them one by one.
// `directory` is recreated for each round.
std::unique_ptr<Side> NewRocksSide(const Workload& workload, std::string directory, Durability durability);
// Appends to one file per caller, with fdatasync after each append.
std::unique_ptr<Side> NewFileSide(const Workload& workload, std::string directory);
// SET and GET of the same values over one connection per caller, with all blocks of an append, or of a sample, in one
// pipeline.
std::unique_ptr<Side> NewRedisSide(const Workload& workload, int port);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_STORE_SIDE_H_
