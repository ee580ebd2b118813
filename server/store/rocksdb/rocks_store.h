// The store that survives a restart: samples and blocks in a RocksDB database, their index in memory.
//
//   MemoryStore (index, rules) ─▶ RocksRun ─▶ one column family per run: records of samples, blocks as blobs
//
// An append is written, with all that it changes, in one batch before it is acknowledged. A process at a time may have
// the database open. Rows are rejected before the disk is full (rocks_run.h). Once a write has failed the database
// rejects all (RESOURCE_EXHAUSTED, UNAVAILABLE) and is read from as before: RocksDB goes on by itself when a full disk
// has room again, after other failures when it is opened again.
//
// What survives which end is the run's durability: see rocks_recovery.h. After an end that it may not have survived,
// all its samples have another revision.
#ifndef SERVER_STORE_ROCKSDB_ROCKS_STORE_H_
#define SERVER_STORE_ROCKSDB_ROCKS_STORE_H_

#include <rocksdb/env.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/store/memory/memory_store.h"
#include "server/store/rocksdb/rocks_recovery.h"

namespace routing_replay::server {

struct RocksStoreOptions {
  std::string path;                              // A directory; made if it is not there.
  Durability durability = Durability::kWritten;  // Of runs that ask for none.
  // For what was read and what is not yet in a table file; outside of the budget.
  int64_t cache_bytes = int64_t{256} << 20;
  rocksdb::Env* env = nullptr;  // Outlives the store. Null: the machine's. Tests inject failures here.
  std::string boot_id = MachineBootId();
  MemoryStoreOptions memory;  // The budget bounds the index.
};

// Finds what is in the database, and says in `report` what that is. A run that is damaged is not served, and cannot be
// made again before it is dropped: OpenRun says DATA_LOSS. UNAVAILABLE if the database cannot be opened, DATA_LOSS if
// it is damaged as a whole, otherwise as NewKeptStore.
absl::StatusOr<std::unique_ptr<Store>> OpenRocksStore(RocksStoreOptions options, RecoveryReport& report);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_ROCKSDB_ROCKS_STORE_H_
