#include "server/store/rocksdb/rocks_recovery.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/store/rocksdb/rocks_keys.h"
#include "server/store/rocksdb/rocks_status.h"
#include "server/store/sample/sample_rules.h"

namespace routing_replay::server {
namespace {

// Longer than any TTL, twice.
constexpr int64_t kLongestIdleMs = std::chrono::milliseconds(std::chrono::hours(24 * 365)).count();
constexpr absl::string_view kUnreadable = "the database cannot be read";
constexpr uint32_t kChangesAtOnce = 1000;

// Those of a sample, ascending.
struct Windows {
  std::vector<std::string> records;
  int64_t end = 0;  // After the number of the last one; some before may be missing.
};

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
  Recovery(const RocksFamily& family, int32_t block_rows, bool doubtful, const StoreTime& time,
           const StoreTime& use_time, RocksRun& run, RecoveryReport& report)
      : family_(family),
        block_rows_(block_rows),
        doubtful_(doubtful),
        now_ms_(time.NowMs()),
        use_now_ms_(use_time.NowMs()),
        run_(run),
        report_(report) {}

  absl::StatusOr<std::vector<KeptSample>> Run() {
    absl::Status status = ForEach(family_, std::string(1, rocks::kBlockIdPrefix), [&](absl::string_view key, auto) {
      present_.insert(rocks::BlockOf(key));
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    status = ForEach(family_, std::string(1, rocks::kHeadPrefix),
                     [&](absl::string_view key, absl::string_view head) { return AddSample(key, head); });
    if (!status.ok()) return status;
    RemoveOrphans();
    status = WriteChanges();
    if (!status.ok()) return status;
    return std::move(samples_);
  }

 private:
  absl::Status AddSample(absl::string_view key, absl::string_view head) {
    const Producer producer = rocks::ProducerOf(key);
    const std::string sample(rocks::SampleOf(key));
    Windows windows;
    std::string prefix = rocks::WindowKey(producer, sample, 0);
    prefix.resize(prefix.size() - sizeof(int64_t));
    absl::Status status = ForEach(family_, prefix, [&](absl::string_view window_key, absl::string_view window) {
      windows.records.emplace_back(window);
      windows.end = rocks::WindowOf(window_key) + 1;
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    const auto block_at = [&](const BlockPlace& place) { return BlockAt(place); };
    absl::StatusOr<SampleContent> content = DecodeContent(head, windows.records, block_rows_, block_at);
    if (!content.ok()) content = Remains(producer, sample, head, windows);
    if (!content.ok()) return content.status();
    if (doubtful_) {
      ++report_.doubtful_samples;
      MarkDoubtful(*content, now_ms_, content_ids_);
      changes_.Put(family_.handle, {key.data(), key.size()}, EncodeHead(*content, block_rows_));
      if (changes_.Count() >= kChangesAtOnce) status = WriteChanges();
      if (!status.ok()) return status;
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
    const int64_t used_ms = got.ok() ? rocks::DecodeTime(value) : use_now_ms_;
    return std::chrono::milliseconds(std::clamp<int64_t>(use_now_ms_ - used_ms, 0, kLongestIdleMs));
  }

  // What is left of a damaged sample, in the database as well. Errors are those of writing it there.
  absl::StatusOr<SampleContent> Remains(Producer producer, const std::string& sample, absl::string_view head,
                                        const Windows& windows) {
    absl::StatusOr<SalvagedContent> salvaged =
        SalvageContent(head, windows.records, block_rows_, [&](const BlockPlace& place) { return BlockAt(place); });
    const bool headless = !salvaged.ok();
    if (headless) salvaged = Tombstone(windows);
    SampleContent left = RemainingContent(salvaged->content, salvaged->rows_before, content_ids_);
    absl::Status written = run_.Write({.producer = producer,
                                       .sample = sample,
                                       .block_rows = block_rows_,
                                       .lists = left,
                                       .first_window = WindowCount(left.rows(), block_rows_),
                                       .windows_before = windows.end});
    if (!written.ok()) return written;
    if (headless) {
      ++report_.lost_samples;
    } else {
      report_.lost_rows += salvaged->rows_before - left.rows();
    }
    left.pieces = std::move(salvaged->content.pieces);
    return left;
  }

  // Of a sample whose head is damaged. It had at least one row of its last window, and which revision is not known.
  SalvagedContent Tombstone(const Windows& windows) const {
    SalvagedContent nothing{SampleContent(TokenChecks(block_rows_))};
    nothing.content.revision = now_ms_;
    nothing.rows_before = std::max<int64_t>(windows.end - 1, 0) * block_rows_ + 1;
    return nothing;
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

  void RemoveOrphans() {
    for (const uint64_t block : present_) {
      if (shown_.contains(block)) continue;
      ++report_.orphan_blocks;
      changes_.Delete(family_.handle, rocks::BlockKey(block));
      changes_.Delete(family_.handle, rocks::BlockIdKey(block));
    }
  }

  // Logged, whatever the run's durability is: what marks the samples must not be lost as they were.
  absl::Status WriteChanges() {
    const rocksdb::Status written = family_.db->Write(RocksWriteOptions(Durability::kWritten), &changes_);
    changes_.Clear();
    return FromRocks(written, "the database cannot be written to");
  }

  const RocksFamily& family_;
  const int32_t block_rows_;
  const bool doubtful_;
  const int64_t now_ms_;
  const int64_t use_now_ms_;
  RocksRun& run_;
  RecoveryReport& report_;
  ContentIds content_ids_;
  rocksdb::WriteBatch changes_;
  std::set<uint64_t> present_;
  std::set<uint64_t> shown_;
  std::map<uint64_t, std::shared_ptr<StoredBlock>> blocks_;
  std::map<const StoredBlock*, uint64_t> numbers_;
  std::vector<KeptSample> samples_;
};

}  // namespace

absl::StatusOr<std::vector<KeptSample>> RecoverSamples(const RocksFamily& family, int32_t block_rows, bool doubtful,
                                                       const StoreTime& time, const StoreTime& use_time, RocksRun& run,
                                                       RecoveryReport& report) {
  return Recovery(family, block_rows, doubtful, time, use_time, run, report).Run();
}

std::string Describe(const RecoveryReport& report) {
  std::string line = absl::StrCat("found ", report.runs, " runs, ", report.samples, " samples, ", report.rows,
                                  " rows; lost ", report.lost_samples, " samples and ", report.lost_rows,
                                  " rows of others; removed ", report.orphan_blocks, " orphan blocks");
  if (report.log_damaged) {
    absl::StrAppend(&line, "; the log of what was written last is ",
                    report.log_copy.empty() ? "gone" : absl::StrCat("damaged, and kept in ", report.log_copy),
                    ": others may be gone whole");
  }
  if (report.doubtful_runs > 0) {
    absl::StrAppend(&line, report.log_damaged ? ", " : "; the last end was not clean: ", report.doubtful_runs,
                    " runs may lack what was acknowledged last, and their ", report.doubtful_samples,
                    " samples have new revisions");
  }
  if (!report.damaged_runs.empty()) {
    absl::StrAppend(&line, "; damaged, not served and left alone: runs ", absl::StrJoin(report.damaged_runs, ", "));
  }
  return line;
}

}  // namespace routing_replay::server
