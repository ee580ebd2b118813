#include "server/store/rocksdb/rocks_recovery.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "server/store/rocksdb/rocks_keys.h"
#include "server/store/rocksdb/rocks_status.h"
#include "server/store/sample/sample_rules.h"

namespace routing_replay {
namespace {

// Longer than any TTL, twice.
constexpr int64_t kLongestIdleMs = std::chrono::milliseconds(std::chrono::hours(24 * 365)).count();
constexpr absl::string_view kUnreadable = "the database cannot be read";

absl::string_view View(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// Calls `each` with every key that begins with `prefix`, and its value, ascending, as long as it gives OK.
template <typename Each>
absl::Status ForEach(const RocksFamily& family, absl::string_view prefix, const Each& each) {
  const std::unique_ptr<rocksdb::Iterator> it(family.db->NewIterator(rocksdb::ReadOptions(), family.handle));
  for (it->Seek({prefix.data(), prefix.size()}); it->Valid(); it->Next()) {
    if (View(it->key()).substr(0, prefix.size()) != prefix) break;
    if (absl::Status status = each(View(it->key()), View(it->value())); !status.ok()) return status;
  }
  return FromRocks(it->status(), kUnreadable);
}

class Recovery {
 public:
  Recovery(const RocksFamily& family, int32_t block_rows, const StoreTime& time, RocksRun& run, RecoveryReport& report)
      : family_(family), block_rows_(block_rows), now_ms_(time.NowMs()), run_(run), report_(report) {}

  absl::StatusOr<std::vector<KeptSample>> Run() {
    absl::Status status = ForEach(family_, std::string(1, rocks::kBlockIdPrefix), [&](absl::string_view key, auto) {
      present_.insert(rocks::BlockOf(key));
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    status = ForEach(family_, std::string(1, rocks::kHeadPrefix),
                     [&](absl::string_view key, absl::string_view head) { return AddSample(key, head); });
    if (!status.ok()) return status;
    status = RemoveOrphans();
    if (!status.ok()) return status;
    return std::move(samples_);
  }

 private:
  absl::Status AddSample(absl::string_view key, absl::string_view head) {
    const Producer producer = rocks::ProducerOf(key);
    const std::string sample(rocks::SampleOf(key));
    std::vector<std::string> windows;
    std::string prefix = rocks::WindowKey(producer, sample, 0);
    prefix.resize(prefix.size() - sizeof(int64_t));
    absl::Status status = ForEach(family_, prefix, [&](auto, absl::string_view window) {
      windows.emplace_back(window);
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    const auto block_at = [&](const BlockPlace& place) { return BlockAt(place); };
    absl::StatusOr<SampleContent> content = DecodeContent(head, windows, block_rows_, block_at);
    if (!content.ok()) content = Remains(producer, sample, head, windows);
    if (!content.ok()) {
      ++report_.lost_samples;
      return run_.Remove(producer, sample);
    }
    ++report_.samples;
    report_.rows += content->rows();
    for (const RowPiece& piece : content->pieces.all()) shown_.insert(numbers_.at(piece.stored.get()));
    samples_.push_back({producer, sample, Idle(producer, sample), *std::move(content)});
    return absl::OkStatus();
  }

  // Nothing of a sample whose last use is not to be found.
  std::chrono::milliseconds Idle(Producer producer, const std::string& sample) const {
    std::string value;
    const rocksdb::Status got =
        family_.db->Get(rocksdb::ReadOptions(), family_.handle, rocks::UseKey(producer, sample), &value);
    const int64_t used_ms = got.ok() ? rocks::DecodeTime(value) : now_ms_;
    return std::chrono::milliseconds(std::clamp<int64_t>(now_ms_ - used_ms, 0, kLongestIdleMs));
  }

  // What is left of a damaged sample, in the database as well.
  absl::StatusOr<SampleContent> Remains(Producer producer, const std::string& sample, absl::string_view head,
                                        const std::vector<std::string>& windows) {
    absl::StatusOr<SalvagedContent> salvaged =
        SalvageContent(head, windows, block_rows_, [&](const BlockPlace& place) { return BlockAt(place); });
    if (!salvaged.ok()) return salvaged.status();
    SampleContent left = RemainingContent(salvaged->content, salvaged->rows_before, content_ids_);
    const absl::Status written = run_.Write({.producer = producer,
                                             .sample = sample,
                                             .block_rows = block_rows_,
                                             .lists = left,
                                             .first_window = WindowCount(left.rows(), block_rows_),
                                             .windows_before = static_cast<int64_t>(windows.size())});
    if (!written.ok()) return written;
    report_.lost_rows += salvaged->rows_before - left.rows();
    left.pieces = std::move(salvaged->content.pieces);
    return left;
  }

  // One object for all samples that show a block. Null if it is not there, or if two samples say different things of
  // it: neither is to be trusted.
  std::shared_ptr<StoredBlock> BlockAt(const BlockPlace& place) {
    if (!present_.contains(place.id)) return nullptr;
    std::shared_ptr<StoredBlock>& block = blocks_[place.id];
    if (block == nullptr) {
      block = run_.Found(place);
      numbers_[block.get()] = place.id;
    }
    return block->rows() == place.rows && block->codec() == place.codec ? block : nullptr;
  }

  absl::Status RemoveOrphans() {
    rocksdb::WriteBatch batch;
    for (const uint64_t block : present_) {
      if (shown_.contains(block)) continue;
      ++report_.orphan_blocks;
      batch.Delete(family_.handle, rocks::BlockKey(block));
      batch.Delete(family_.handle, rocks::BlockIdKey(block));
    }
    return FromRocks(family_.db->Write(rocksdb::WriteOptions(), &batch), "the database cannot be written to");
  }

  const RocksFamily& family_;
  const int32_t block_rows_;
  const int64_t now_ms_;
  RocksRun& run_;
  RecoveryReport& report_;
  ContentIds content_ids_;
  std::set<uint64_t> present_;
  std::set<uint64_t> shown_;
  std::map<uint64_t, std::shared_ptr<StoredBlock>> blocks_;
  std::map<const StoredBlock*, uint64_t> numbers_;
  std::vector<KeptSample> samples_;
};

}  // namespace

absl::StatusOr<std::vector<KeptSample>> RecoverSamples(const RocksFamily& family, int32_t block_rows,
                                                       const StoreTime& time, RocksRun& run, RecoveryReport& report) {
  return Recovery(family, block_rows, time, run, report).Run();
}

}  // namespace routing_replay
