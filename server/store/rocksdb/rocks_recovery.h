// What a run's column family holds, put together again.
#ifndef SERVER_STORE_ROCKSDB_ROCKS_RECOVERY_H_
#define SERVER_STORE_ROCKSDB_ROCKS_RECOVERY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/store/memory/run_keeper.h"
#include "server/store/rocksdb/rocks_run.h"

namespace routing_replay::server {

// Counts of what was found.
struct RecoveryReport {
  int64_t runs = 0;
  int64_t samples = 0;
  int64_t rows = 0;
  int64_t lost_rows = 0;      // Of samples of which others are left; they say so themselves.
  int64_t lost_samples = 0;   // Their heads were damaged: nothing is left of them but that reads say LOST.
  int64_t orphan_blocks = 0;  // That no sample shows: what a crash left behind.
  // That may lack what was acknowledged last, since the last end was not clean or the log is damaged, and their
  // samples, whose revisions say so. Samples that are gone wholly are not known.
  int64_t doubtful_runs = 0;
  int64_t doubtful_samples = 0;
  bool log_damaged = false;               // Or gone. Whole runs may then be gone as well.
  std::string log_copy;                   // Where its files are kept, if there are any.
  std::vector<std::string> damaged_runs;  // Not served; what the database holds of them is left alone.
};
// One line.
std::string Describe(const RecoveryReport& report);

// The samples of a run that is written to by nobody. Of one that is damaged, or shows a block that is not there, the
// rows before are left, as RemainingContent says: none where the head is damaged. What is lost is counted and taken out
// of the database, as are blocks that no sample shows. `doubtful`: each is marked so (MarkDoubtful). DATA_LOSS if the
// run cannot be read; otherwise errors as those of SampleJournal.
absl::StatusOr<std::vector<KeptSample>> RecoverSamples(const RocksFamily& family, int32_t block_rows, bool doubtful,
                                                       const StoreTime& time, const StoreTime& use_time, RocksRun& run,
                                                       RecoveryReport& report);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_ROCKSDB_ROCKS_RECOVERY_H_
