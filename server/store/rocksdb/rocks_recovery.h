// What a run's column family holds, put together again.
#ifndef SERVER_STORE_ROCKSDB_ROCKS_RECOVERY_H_
#define SERVER_STORE_ROCKSDB_ROCKS_RECOVERY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/store/memory/run_keeper.h"
#include "server/store/rocksdb/rocks_run.h"

namespace routing_replay {

// Counts of what was found.
struct RecoveryReport {
  int64_t runs = 0;
  int64_t samples = 0;
  int64_t rows = 0;
  int64_t lost_rows = 0;      // Of samples of which others are left; they say so themselves.
  int64_t lost_samples = 0;   // Their heads were damaged; nothing of them is left.
  int64_t orphan_blocks = 0;  // That no sample shows: what a crash left behind.
};

// The samples of a run that is written to by nobody. Of one that is damaged, or shows a block that is not there, the
// rows before are left, as RemainingContent says; what is lost is counted and taken out of the database, as are blocks
// that no sample shows. Errors as those of SampleJournal.
absl::StatusOr<std::vector<KeptSample>> RecoverSamples(const RocksFamily& family, int32_t block_rows,
                                                       const StoreTime& time, RocksRun& run, RecoveryReport& report);

}  // namespace routing_replay

#endif  // SERVER_STORE_ROCKSDB_ROCKS_RECOVERY_H_
