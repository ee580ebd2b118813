// The store that survives a restart: samples and blocks in a RocksDB database, their index in memory.
//
//   MemoryStore (index, rules) ─▶ RocksRun ─▶ one column family per run: records of samples, blocks as blobs
//
// An append is written, with all that it changes, in one batch before it is acknowledged. A process at a time may have
// the database open. Rows are rejected before the disk is full (rocks_run.h). Once a write has failed the database
// rejects all (RESOURCE_EXHAUSTED, UNAVAILABLE) and is read from as before: RocksDB goes on by itself when a full disk
// has room again, after other failures when it is opened again.
//
// What survives which end is the run's durability: see LastEnd. After an end that it may not have survived,
// all its samples have another revision.
#ifndef SERVER_STORE_ROCKSDB_ROCKS_STORE_H_
#define SERVER_STORE_ROCKSDB_ROCKS_STORE_H_

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/store/memory/memory_store.h"
#include "server/store/rocksdb/rocks_run.h"

namespace routing_replay::server {

// Differs from one start of the machine to the next; empty if it is not known.
std::string MachineBootId();

struct RocksStoreOptions {
  std::string path;                              // A directory; made if it is not there.
  Durability durability = Durability::kWritten;  // Of runs that ask for none.
  // For what was read and what is not yet in a table file; outside of the budget.
  int64_t cache_bytes = int64_t{256} << 20;
  rocksdb::Env* env = nullptr;  // Outlives the store. Null: the machine's. Tests inject failures here.
  std::string boot_id = MachineBootId();
  MemoryStoreOptions memory;  // The budget bounds the index.
};

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

// Finds what is in the database, and says in `report` what that is. A run that is damaged is not served, and cannot be
// made again before it is dropped: OpenRun says DATA_LOSS. UNAVAILABLE if the database cannot be opened, DATA_LOSS if
// it is damaged as a whole, otherwise as NewKeptStore.
absl::StatusOr<std::unique_ptr<Store>> OpenRocksStore(RocksStoreOptions options, RecoveryReport& report);

// How the last process that had the database open ended.
enum class LastEnd {
  kClean,     // It closed the database.
  kSameBoot,  // It did not, and the machine has run on since.
  kUnknown,   // It did not, and the machine may have been started again.
  kDamaged,   // It did not, and its log could not be read to its end, or was not there.
};

struct OpenedDatabase {
  std::shared_ptr<rocksdb::DB> db;
  std::shared_ptr<RocksFamily> by_default;
  std::map<std::string, std::shared_ptr<RocksFamily>> families;  // The others, by name.
  LastEnd last_end = LastEnd::kClean;
  int64_t last_mark_ms = 0;  // Of the last mark; 0 if there is none that can be read.
};

// Makes the database if there is none. What a process that was killed had not written to the end of the log is no
// damage; other damage leaves what was before it, and takes the log away: that is marked, until the store has started,
// so that a start that is killed does not hide it from the next one. UNAVAILABLE if it cannot be opened, DATA_LOSS if
// more than the log is damaged or missing, or nothing before the damage fits together: nothing is changed then.
absl::StatusOr<OpenedDatabase> OpenDatabase(const std::string& path, const rocksdb::Options& options,
                                            const std::string& boot_id);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_ROCKSDB_ROCKS_STORE_H_
