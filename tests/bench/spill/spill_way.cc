#include "tests/bench/spill/spill_way.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/store/rocksdb/rocks_database.h"
#include "server/store/spill/spill.h"

namespace routing_replay::bench {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

class SegmentWay final : public SpillWay {
 public:
  static constexpr int64_t kSpace = int64_t{1} << 40, kSegmentBytes = int64_t{64} << 20;

  explicit SegmentWay(std::shared_ptr<SpillDisk> disk)
      : writer_(std::make_shared<SpillArea>(std::move(disk), kSpace, kSegmentBytes)) {}

  absl::Status Write(absl::Span<const uint8_t> block) override {
    absl::StatusOr<SpillFrame> place = writer_.Put({block});
    if (!place.ok()) return place.status();
    places_.push_back(*std::move(place));
    return absl::OkStatus();
  }
  absl::Status Flush() override { return absl::OkStatus(); }
  bool Read(size_t n, size_t bytes, const std::function<bool(absl::Span<const uint8_t>)>& look) override {
    const SpillFrame& place = places_[n];
    const auto frame = place.segment->Read(place.offset, static_cast<int64_t>(bytes), place.crc32c);
    return frame.ok() && look(frame->span());
  }

 private:
  SegmentWriter writer_;
  std::vector<SpillFrame> places_;
};

class RocksWay final : public SpillWay {
 public:
  // RocksDB's own cache is small, so that it does not hide the cost of reading files. Both ways use the system's page
  // cache.
  static constexpr size_t kCacheBytes = 8 << 20;

  absl::Status Open(const std::string& directory) {
    const auto cache = rocksdb::NewLRUCache(kCacheBytes);
    rocksdb::DBOptions options = RocksDatabaseOptions(cache, nullptr);
    options.write_buffer_manager = nullptr;
    rocksdb::DB* db = nullptr;
    const rocksdb::Status opened = rocksdb::DB::Open({options, RocksRunOptions(cache)}, directory, &db);
    db_.reset(db);
    return FromRocks(opened, directory);
  }

  absl::Status Write(absl::Span<const uint8_t> block) override {
    rocksdb::WriteBatch batch;
    batch.Put(rocks::BlockKey(written_++), {reinterpret_cast<const char*>(block.data()), block.size()});
    return FromRocks(db_->Write(RocksWriteOptions(Durability::kMemory), &batch), "write");
  }
  absl::Status Flush() override { return FromRocks(db_->Flush(rocksdb::FlushOptions()), "flush"); }
  bool Read(size_t n, size_t, const std::function<bool(absl::Span<const uint8_t>)>& look) override {
    rocksdb::PinnableSlice value;
    const bool got = db_->Get(rocksdb::ReadOptions(), db_->DefaultColumnFamily(), rocks::BlockKey(n), &value).ok();
    return got && look({reinterpret_cast<const uint8_t*>(value.data()), value.size()});
  }

 private:
  std::unique_ptr<rocksdb::DB> db_;
  uint64_t written_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SpillWay>> SegmentFiles(const std::string& directory) {
  auto disk = OpenSpillDirectory(directory);
  if (!disk.ok()) return disk.status();
  return std::make_unique<SegmentWay>(*std::move(disk));
}

absl::StatusOr<std::unique_ptr<SpillWay>> RocksBlobs(const std::string& directory) {
  auto way = std::make_unique<RocksWay>();
  if (absl::Status status = way->Open(directory); !status.ok()) return status;
  return way;
}

}  // namespace routing_replay::bench
