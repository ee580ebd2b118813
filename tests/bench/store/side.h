// One side of a comparison: a store, or the engine that it is built on by itself.
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

// Used by one thread, which starts kStoreCallers callers in Append, Read and Check.
class Side {
 public:
  virtual ~Side() = default;
  // Makes it empty; what the appends of the next round need is made here.
  virtual absl::Status Begin(int32_t blocks_per_append) = 0;
  // All blocks, so many at a time; one call after the other of each caller.
  virtual absl::Status Append(int32_t blocks_per_append) = 0;
  // Every sample, whole.
  virtual absl::Status Read() = 0;
  // DATA_LOSS if what is read is not what was appended.
  virtual absl::Status Check() = 0;
  // Leaves no work in the background.
  virtual absl::Status End() = 0;
};

absl::Status Differs(absl::string_view side, int32_t sample, int32_t block);

// Makes an empty store. The sides below ask for a new one in each round, so that rounds are alike.
using MakeStore = std::function<absl::StatusOr<std::unique_ptr<Store>>()>;

struct StoreSideOptions {
  std::string name;
  std::optional<Durability> durability;
  // True: what the store keeps is memory that the caller filled, so that filling it is part of the append, and reading
  // means copying it out.
  bool in_memory = false;
};
// `workload` outlives it, as it does all sides.
std::unique_ptr<Side> NewStoreSide(const Workload& workload, StoreSideOptions options, MakeStore make,
                                   ByteBudget& budget);

// Copies into memory that was touched before, and out of it.
std::unique_ptr<Side> NewMemcpySide(const Workload& workload);
// Puts the same values into a database with the same options, in one batch per append, and gets them one by one.
// `directory`: anew for each round.
std::unique_ptr<Side> NewRocksSide(const Workload& workload, std::string directory, Durability durability);
// Appends to one file per caller, and fdatasync after each.
std::unique_ptr<Side> NewFileSide(const Workload& workload, std::string directory);
// SET and GET of the same values over one connection per caller: all blocks of an append, or a sample, in a pipeline.
std::unique_ptr<Side> NewRedisSide(const Workload& workload, int port);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_STORE_SIDE_H_
