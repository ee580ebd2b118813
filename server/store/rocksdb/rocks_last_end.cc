#include "server/store/rocksdb/rocks_last_end.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "server/store/rocksdb/rocks_keys.h"
#include "server/store/rocksdb/rocks_options.h"
#include "server/store/rocksdb/rocks_status.h"

namespace routing_replay::server {
namespace {

constexpr absl::string_view kClosed = "closed";

std::string OpenBy(const std::string& boot_id) { return absl::StrCat("open ", boot_id); }

absl::Status Mark(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family, const std::string& value, int64_t now_ms) {
  rocksdb::WriteBatch batch;
  batch.Put(family, rocks::kEndKey, value);
  batch.Put(family, rocks::kSeenKey, rocks::EncodeTime(now_ms));
  rocksdb::Status status = db.Write(RocksWriteOptions(Durability::kSynced), &batch);
  if (status.ok()) status = db.Flush(RocksFlushAtOnce(), family);
  return FromRocks(status, "the database cannot be written to");
}

}  // namespace

bool MayLack(LastEnd end, Durability durability) {
  if (end == LastEnd::kClean) return false;
  if (end == LastEnd::kDamaged) return true;
  if (durability == Durability::kSynced) return false;
  return durability == Durability::kMemory || end == LastEnd::kUnknown;
}

std::string MachineBootId() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

absl::StatusOr<LastEnd> ReadLastEnd(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family, const std::string& boot_id,
                                    bool log_damaged) {
  std::string mark;
  const rocksdb::Status got = db.Get(rocksdb::ReadOptions(), family, rocks::kEndKey, &mark);
  const LastEnd unknown = log_damaged ? LastEnd::kDamaged : LastEnd::kUnknown;
  if (got.IsNotFound()) return unknown;
  if (absl::Status status = FromRocks(got, "the database cannot be read"); !status.ok()) return status;
  if (mark == kClosed) return LastEnd::kClean;
  return !log_damaged && !boot_id.empty() && mark == OpenBy(boot_id) ? LastEnd::kSameBoot : unknown;
}

absl::Status MarkOpen(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family, const std::string& boot_id,
                      int64_t now_ms) {
  return Mark(db, family, OpenBy(boot_id), now_ms);
}

absl::Status MarkClosed(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family, int64_t now_ms) {
  return Mark(db, family, std::string(kClosed), now_ms);
}

int64_t LastMarkMs(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family) {
  std::string value;
  return db.Get(rocksdb::ReadOptions(), family, rocks::kSeenKey, &value).ok() ? rocks::DecodeTime(value) : 0;
}

}  // namespace routing_replay::server
