// What a start finds: opens the database as far as it can be read, tells how the last process ended, and puts together
// again what a run's column family holds.
#ifndef SERVER_STORE_ROCKSDB_ROCKS_RECOVERY_H_
#define SERVER_STORE_ROCKSDB_ROCKS_RECOVERY_H_

#include <rocksdb/db.h>
#include <rocksdb/options.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "routing_replay/wire/sample.h"
#include "server/store/memory/run_keeper.h"
#include "server/store/rocksdb/rocks_run.h"

namespace routing_replay::server {

struct OpenedDatabase {
  std::shared_ptr<rocksdb::DB> db;
  std::shared_ptr<RocksFamily> by_default;
  std::map<std::string, std::shared_ptr<RocksFamily>> families;  // The others, by name.
};

// Makes the database if there is none. What a process that was killed had not written to the end of the log is no
// damage. A log that cannot be read otherwise, or is not there, is noted beside the database, which is then what it was
// before the damage: opening it takes the log away, and the note stays until ForgetLogDamage. UNAVAILABLE if it cannot
// be opened, DATA_LOSS if more than the log is damaged or missing, or nothing before the damage fits together: nothing
// is changed then.
absl::StatusOr<OpenedDatabase> OpenDatabase(const std::string& path, const rocksdb::Options& options);
// Whether damage was noted, by this process or by one that ended before it was settled.
bool LogDamageNoted(rocksdb::Env& env, const std::string& path);
// What the damage means for the samples is in the database now.
absl::Status ForgetLogDamage(rocksdb::Env& env, const std::string& path);

// How the last process that had the database open ended.
enum class LastEnd {
  kClean,     // It closed the database.
  kSameBoot,  // It did not, and the machine has run on since.
  kUnknown,   // It did not, and the machine may have been started again.
  kDamaged,   // It did not, and what it had logged cannot be read to its end.
};

// Whether runs of this durability may then lack what was acknowledged last: what is in memory goes with the process,
// what the operating system has been given goes with the machine, what is on the disk goes with the disk.
bool MayLack(LastEnd end, Durability durability);

// Differs from one start of the machine to the next; empty if it is not known.
std::string MachineBootId();

// `family`: where the mark lies. `log_damaged`: whether what was logged since the mark can be read to its end. Errors
// as FromRocks.
absl::StatusOr<LastEnd> ReadLastEnd(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family, const std::string& boot_id,
                                    bool log_damaged);
// Each in a file other than the log when it returns, so that damage to the log cannot bring back the mark before. The
// latter requires that all else is in such files, too: after it, nothing that is in the log is needed.
absl::Status MarkOpen(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family, const std::string& boot_id, int64_t now_ms);
absl::Status MarkClosed(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family, int64_t now_ms);
// `now_ms` of the last mark; 0 if there is none that can be read.
int64_t LastMarkMs(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family);

// Counts of what was found.
struct RecoveryReport {
  int64_t runs = 0;
  int64_t samples = 0;
  int64_t rows = 0;
  int64_t orphan_blocks = 0;  // That no sample shows: what a crash left behind.
  // That may lack what was acknowledged last, since the last end was not clean or the log is damaged, and their
  // samples, whose revisions say so. Samples that are gone wholly are not known.
  int64_t doubtful_runs = 0;
  int64_t doubtful_samples = 0;
  bool log_damaged = false;               // Or gone. Whole runs may then be gone as well.
  std::vector<std::string> damaged_runs;  // Not served; what the database holds of them is left alone.
};
// One line.
std::string Describe(const RecoveryReport& report);

// The samples of a run that is written to by nobody. Blocks that no sample shows are taken out of the database.
// `doubtful`: each sample is marked so (MarkDoubtful). DATA_LOSS if what the database says of a sample cannot be read
// or does not fit together; UNAVAILABLE, RESOURCE_EXHAUSTED if it cannot be written to.
absl::StatusOr<std::vector<KeptSample>> RecoverSamples(const RocksFamily& family, int32_t block_rows, bool doubtful,
                                                       const StoreTime& time, const StoreTime& use_time, RocksRun& run,
                                                       RecoveryReport& report);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_ROCKSDB_ROCKS_RECOVERY_H_
