#include "server/store/rocksdb/rocks_options.h"

#include <rocksdb/cache.h>
#include <rocksdb/table.h>
#include <rocksdb/write_buffer_manager.h>

#include <memory>
#include <utility>

#include "server/store/rocksdb/rocks_log.h"

namespace routing_replay::server {
namespace {

constexpr uint64_t kBlobBytes = 4 << 10;
constexpr uint64_t kBlobFileBytes = 256 << 20;
constexpr uint64_t kMemtableBytes = 64 << 20;
// Of a run: one more that waits to be flushed stops the writes of all runs. Those that a dropped run has flushed wait
// beside those that are full; the memory of all together has a bound of its own.
constexpr int kMemtables = 4;
// Of all logs together: a run that is seldom written to would otherwise hold all that were written since.
constexpr uint64_t kLogBytes = 256 << 20;
// What the appends that wait for a sync may have together: those that have more wait for another one. Where the first
// of them is small, RocksDB lets the others have no more than an eighth of it.
constexpr uint64_t kGroupBytes = 64 << 20;
// Between two looks for files that nobody wants, such as one that was being written when its run was dropped.
constexpr uint64_t kLookMicros = 10'000'000;
// A blob file of which so much is garbage is rewritten.
constexpr double kGarbage = 0.25;

}  // namespace

rocksdb::DBOptions RocksDatabaseOptions(const std::shared_ptr<rocksdb::Cache>& cache, rocksdb::Env* env) {
  rocksdb::DBOptions options;
  if (env != nullptr) options.env = env;
  options.write_buffer_manager = std::make_shared<rocksdb::WriteBufferManager>(cache->GetCapacity() / 2, cache);
  options.create_if_missing = true;
  options.max_background_jobs = 4;
  options.info_log = NewRocksLog();
  options.bytes_per_sync = 1 << 20;
  options.max_total_wal_size = kLogBytes;
  options.delete_obsolete_files_period_micros = kLookMicros;
  options.max_write_batch_group_size_bytes = kGroupBytes;
  return options;
}

rocksdb::ColumnFamilyOptions RocksRunOptions(std::shared_ptr<rocksdb::Cache> cache) {
  rocksdb::ColumnFamilyOptions options;
  options.enable_blob_files = true;
  options.min_blob_size = kBlobBytes;
  options.blob_file_size = kBlobFileBytes;
  options.enable_blob_garbage_collection = true;
  options.blob_garbage_collection_force_threshold = kGarbage;
  options.write_buffer_size = kMemtableBytes;
  options.max_write_buffer_number = kMemtables;
  options.blob_cache = cache;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = std::move(cache);
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

rocksdb::WriteOptions RocksWriteOptions(Durability durability) {
  rocksdb::WriteOptions options;
  options.disableWAL = durability == Durability::kMemory;
  options.sync = durability == Durability::kSynced;
  // Otherwise such a write makes the database refuse those of every run.
  options.ignore_missing_column_families = true;
  return options;
}

rocksdb::FlushOptions RocksFlushAtOnce() {
  rocksdb::FlushOptions options;
  options.allow_write_stall = true;
  return options;
}

}  // namespace routing_replay::server
