#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/rocksdb/rocks_database.h"
#include "server/store/rocksdb/rocks_store.h"
#include "tests/bench/store/side.h"

namespace routing_replay::bench {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

class RocksSide final : public Side {
 public:
  RocksSide(const Workload& workload, std::string directory, Durability durability)
      : workload_(workload), directory_(std::move(directory)), durability_(durability) {}

  absl::Status Begin(int32_t) override {
    db_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
    const auto cache = rocksdb::NewLRUCache(RocksStoreOptions{}.cache_bytes);
    const rocksdb::Options options(RocksDatabaseOptions(cache, nullptr), RocksRunOptions(cache));
    rocksdb::DB* db = nullptr;
    const rocksdb::Status opened = rocksdb::DB::Open(options, directory_, &db);
    db_.reset(db);
    return FromRocks(opened, directory_);
  }

  absl::Status Append(int32_t blocks_per_append) override {
    const rocksdb::WriteOptions options = RocksWriteOptions(durability_);
    return workload_.ForEachSample([&](int, int32_t sample) {
      for (int32_t first = 0; first < workload_.blocks_per_sample(); first += blocks_per_append) {
        rocksdb::WriteBatch batch;
        for (int32_t block = first; block < first + blocks_per_append; ++block) Put(sample, block, batch);
        if (const rocksdb::Status status = db_->Write(options, &batch); !status.ok()) return FromRocks(status, "write");
      }
      return absl::OkStatus();
    });
  }

  absl::Status Read() override {
    return ReadBlocks([](int32_t, int32_t, const rocksdb::Slice&) { return absl::OkStatus(); });
  }
  absl::Status Check() override {
    return ReadBlocks([this](int32_t sample, int32_t block, const rocksdb::Slice& value) {
      const absl::Span<const uint8_t> bytes = workload_.Bytes(sample, block);
      const bool same = value.size() == CrcBytes() + bytes.size() &&
                        std::memcmp(value.data() + CrcBytes(), bytes.data(), bytes.size()) == 0;
      return same ? absl::OkStatus() : Differs("rocksdb", sample, block);
    });
  }
  absl::Status End() override {
    db_.reset();
    return absl::OkStatus();
  }

 private:
  static std::string Key(int32_t sample, int32_t block) { return absl::StrCat("b", sample, "/", block); }
  size_t CrcBytes() const { return sizeof(uint32_t) * workload_.geometry()->num_moe_layers(); }

  void Put(int32_t sample, int32_t block, rocksdb::WriteBatch& batch) const {
    const std::vector<uint32_t>& crcs = workload_.Crcs(sample, block);
    const absl::Span<const uint8_t> bytes = workload_.Bytes(sample, block);
    const std::string key = Key(sample, block);
    const rocksdb::Slice key_part(key);
    const rocksdb::Slice parts[] = {{reinterpret_cast<const char*>(crcs.data()), CrcBytes()},
                                    {reinterpret_cast<const char*>(bytes.data()), bytes.size()}};
    batch.Put(db_->DefaultColumnFamily(), rocksdb::SliceParts(&key_part, 1), rocksdb::SliceParts(parts, 2));
  }

  template <typename Take>
  absl::Status ReadBlocks(const Take& take) {
    return workload_.ForEachSample([&](int, int32_t sample) {
      for (int32_t block = 0; block < workload_.blocks_per_sample(); ++block) {
        rocksdb::PinnableSlice value;
        const rocksdb::Status got =
            db_->Get(rocksdb::ReadOptions(), db_->DefaultColumnFamily(), Key(sample, block), &value);
        if (!got.ok()) return FromRocks(got, "get");
        if (absl::Status status = take(sample, block, value); !status.ok()) return status;
      }
      return absl::OkStatus();
    });
  }

  const Workload& workload_;
  const std::string directory_;
  const Durability durability_;
  std::unique_ptr<rocksdb::DB> db_;
};

}  // namespace

std::unique_ptr<Side> NewRocksSide(const Workload& workload, std::string directory, Durability durability) {
  return std::make_unique<RocksSide>(workload, std::move(directory), durability);
}

}  // namespace routing_replay::bench
