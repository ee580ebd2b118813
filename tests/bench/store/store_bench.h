// The stores, each beside the engine that it is built on, in the same rounds:
//   memory          memcpy into memory that was touched before
//   rocksdb         a loop over the same RocksDB with the same options and values
//   rocksdb-synced  the same loop with the same durability; and plain files with fdatasync
//   redis           SET and GET of the same values through plain sockets
//
// The stores are called in this process through the Store interface, without gRPC. They get blocks as the service
// passes them on: checked, with CRCs. The stored blocks are read and compared after each append, outside the clock.
#ifndef TESTS_BENCH_STORE_STORE_BENCH_H_
#define TESTS_BENCH_STORE_STORE_BENCH_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/common/figure.h"
#include "tests/bench/common/options.h"

namespace routing_replay::bench {

// Prints what it must skip, and why, to standard error. DATA_LOSS if the blocks read differ from the blocks appended.
absl::StatusOr<std::vector<Figure>> BenchStore(const BenchOptions& options);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_STORE_STORE_BENCH_H_
