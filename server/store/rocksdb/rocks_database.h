// The database of a store: RocksDB's options for blocks of routes, and the layout of the keys.
//
// Each run has its own column family, so that it can be dropped at once with all it holds:
//
//   default             'r' run                        → RunRecord
//                       "end"                          → how the last process ended
//                       "seen"                         → when it began or ended: ms, time of use
//   "run:" + run        'h' producer sample            → SampleHead
//                       'w' producer sample 0 window   → WindowRecord
//                       'u' producer sample            → when it was last used: ms, time of use
//                       'b' block                      → CRCs of the planes, then the block's bytes; a blob
//                       'i' block                      → nothing: which blocks there are, without reading blobs
//
// producer: one byte. window, block, times: 8 bytes, big-endian. Sample ids contain no byte 0. The time of use does not
// advance while no server is running.
#ifndef SERVER_STORE_ROCKSDB_ROCKS_DATABASE_H_
#define SERVER_STORE_ROCKSDB_ROCKS_DATABASE_H_

#include <rocksdb/listener.h>
#include <rocksdb/options.h>
#include <rocksdb/status.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/wire/mutex.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay::server {

// Values of 4 KiB and more are stored as blobs, which compaction does not rewrite. `cache` holds, for all runs
// together, data that was read and, in up to half of it, data that is not yet in a table file. `env` is null for the
// real file system.
rocksdb::DBOptions RocksDatabaseOptions(const std::shared_ptr<rocksdb::Cache>& cache, rocksdb::Env* env);
rocksdb::ColumnFamilyOptions RocksRunOptions(std::shared_ptr<rocksdb::Cache> cache);
rocksdb::WriteOptions RocksWriteOptions(Durability durability);
// Options of a flush that does not wait because of other writes, and returns when it is done.
rocksdb::FlushOptions RocksFlushAtOnce();

// Converts a RocksDB status. DATA_LOSS (kChecksum) if something is damaged or missing, RESOURCE_EXHAUSTED (kOverBudget)
// for a full disk, UNAVAILABLE for any other failure, each as "WHAT: …".
absl::Status FromRocks(const rocksdb::Status& status, absl::string_view what);

// Tells whether a database accepts writes, from the events that it reports. One per database. Thread-safe.
class RocksHealth final : public rocksdb::EventListener {
 public:
  // OK while the database accepts writes. Otherwise the error that made it reject them, converted by FromRocks.
  absl::Status Get() const;

  void OnBackgroundError(rocksdb::BackgroundErrorReason reason, rocksdb::Status* error) override;
  void OnErrorRecoveryEnd(const rocksdb::BackgroundErrorRecoveryInfo& info) override;

 private:
  mutable Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

namespace routing_replay::server::rocks {

// Keys. Pure; thread-safe.
inline constexpr absl::string_view kRunPrefix = "r";
inline constexpr absl::string_view kHeadPrefix = "h";
inline constexpr absl::string_view kWindowPrefix = "w";
inline constexpr absl::string_view kUsePrefix = "u";
inline constexpr absl::string_view kBlockPrefix = "b";
inline constexpr absl::string_view kBlockIdPrefix = "i";
inline constexpr char kEndKey[] = "end";
inline constexpr char kSeenKey[] = "seen";

std::string RunFamily(absl::string_view run);
std::string RunKey(absl::string_view run);
std::string HeadKey(Producer producer, absl::string_view sample);
// The windows of a sample follow one another, ascending.
std::string WindowKey(Producer producer, absl::string_view sample, int64_t window);
std::string UseKey(Producer producer, absl::string_view sample);
std::string BlockKey(uint64_t block);
std::string BlockIdKey(uint64_t block);

// Requires a key made by HeadKey.
Producer ProducerOf(absl::string_view head_key);
absl::string_view SampleOf(absl::string_view head_key);
// Requires a key made by RunKey.
absl::string_view RunOf(absl::string_view run_key);
// Requires a key made by BlockIdKey.
uint64_t BlockOf(absl::string_view block_id_key);

std::string EncodeTime(int64_t ms);
// 0 if it is not a time.
int64_t DecodeTime(absl::string_view value);

}  // namespace routing_replay::server::rocks

#endif  // SERVER_STORE_ROCKSDB_ROCKS_DATABASE_H_
