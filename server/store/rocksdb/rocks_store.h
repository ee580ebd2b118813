// The store that survives a restart: samples and blocks in a RocksDB database, their index in memory.
//
//   MemoryStore (index, rules) ─▶ RocksRun ─▶ one column family per run: records of samples, blocks as blobs
//
// An append and everything that it changes are written in one batch before it is acknowledged. Only one process at a
// time can open the database. Rows are rejected before the disk is full (RocksSpace). After a failed write the
// database rejects all writes (RESOURCE_EXHAUSTED, UNAVAILABLE) and still serves reads. When a full disk has room
// again, RocksDB resumes by itself; after other failures the database must be opened again.
//
// The durability of a run says which kind of process end its rows survive: see LastEnd. After an end that may have lost
// rows of a run, all its samples get new revisions.
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
#include "server/store/rocksdb/rocks_database.h"

namespace routing_replay::server {

// An id that changes with every start of the machine; empty if it is not known.
std::string MachineBootId();

struct RocksStoreOptions {
  std::string path;                              // A directory; made if it does not exist.
  Durability durability = Durability::kWritten;  // For runs that do not set one.
  // For data that was read and data that is not yet in a table file; not part of the budget.
  int64_t cache_bytes = int64_t{256} << 20;
  rocksdb::Env* env = nullptr;  // Must outlive the store. Null: the machine's. Tests inject failures here.
  std::string boot_id = MachineBootId();
  MemoryStoreOptions memory;  // The budget bounds the index.
};

// What the recovery found.
struct RecoveryReport {
  int64_t runs = 0;
  int64_t samples = 0;
  // Runs that may have lost their last acknowledged changes: the last stop was not clean, or the log is damaged.
  int64_t doubtful_runs = 0;
  int64_t doubtful_samples = 0;           // Samples found in these runs; all have new revisions.
  bool log_damaged = false;               // The log is damaged or missing. Whole runs may be missing as well.
  std::vector<std::string> damaged_runs;  // These runs are not served; their data in the database is kept.
};
// The report in one line.
std::string Describe(const RecoveryReport& report);

// Opens the database and fills `report` with what it found. A damaged run is not served, and must be dropped before it
// can be made again; until then, OpenRun returns DATA_LOSS. UNAVAILABLE if the database cannot be opened, DATA_LOSS if
// it is damaged as a whole, otherwise as NewKeptStore.
absl::StatusOr<std::unique_ptr<Store>> OpenRocksStore(RocksStoreOptions options, RecoveryReport& report);

// How the last process that had the database open ended.
enum class LastEnd {
  kClean,     // The process closed the database.
  kSameBoot,  // The process was killed, and the machine has kept running since.
  kUnknown,   // The process was killed, and the machine may have restarted.
  kDamaged,   // The process was killed, and its log is missing or could not be read to the end.
};

struct OpenedDatabase {
  std::shared_ptr<rocksdb::DB> db;
  std::shared_ptr<RocksFamily> by_default;
  std::map<std::string, std::shared_ptr<RocksFamily>> families;  // All but the default family, by name.
  LastEnd last_end = LastEnd::kClean;
};

// Makes the database if it does not exist. A log that ends early because a process was killed is not damage. After
// other damage to the log, the data before the damage is kept and the log is removed. A mark on the disk records the
// damage until the store has started, so that the next start knows of it even if this one is killed. UNAVAILABLE if the
// database cannot be opened. DATA_LOSS, with nothing changed, if more than the log is damaged or missing, or if the
// remaining data is inconsistent.
absl::StatusOr<OpenedDatabase> OpenDatabase(const std::string& path, const rocksdb::Options& options,
                                            const std::string& boot_id);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_ROCKSDB_ROCKS_STORE_H_
