#include "trainer_plugin/fetch/step_cache.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/fetch/staging_sink.h"

namespace routing_replay::trainer {
namespace {

// Estimated memory of a slice besides its rows and key: the Entry, its nodes in entries_ and kept_, its SampleRecord.
constexpr int64_t kEntryBytes = 1024;

int64_t BytesOf(const StagedRows& rows, const std::string& key) {
  return kEntryBytes + static_cast<int64_t>(rows.staging.size() + rows.pieces.size() * sizeof(StagedPiece) +
                                            rows.unrecorded[0].size() * sizeof(RowRange) + 2 * key.size());
}

// Groups the pieces by sequence, ascending by offset in the staging buffer.
std::vector<std::vector<StagedPiece>> PiecesBySequence(const StagedRows& rows) {
  std::vector<std::vector<StagedPiece>> pieces(rows.unrecorded.size());
  for (const StagedPiece& piece : rows.pieces) pieces[piece.sequence].push_back(piece);
  return pieces;
}

// Cuts one slice out of a read. Its pieces are adjacent and end where those of the next slice begin.
std::shared_ptr<const StagedRows> OneSlice(const StagedRows& read, int32_t slice, int32_t sequence,
                                           std::vector<StagedPiece> pieces) {
  auto one = std::make_shared<StagedRows>();
  one->records = {read.records[slice]};
  one->unrecorded = {read.unrecorded[sequence]};
  if (read.records[slice].status != SampleStatus::kOk || pieces.empty()) return one;
  const int64_t begin = pieces.front().offset, last = pieces.back().offset;
  const auto next = std::partition_point(read.pieces.begin(), read.pieces.end(),
                                         [&](const StagedPiece& piece) { return piece.offset <= last; });
  const int64_t end = next == read.pieces.end() ? static_cast<int64_t>(read.staging.size()) : next->offset;
  one->staging.assign(read.staging.begin() + begin, read.staging.begin() + end);
  for (StagedPiece& piece : pieces) {
    piece.sequence = 0;
    piece.offset -= begin;
  }
  one->pieces = std::move(pieces);
  return one;
}

}  // namespace

std::string SliceKey(const ReplayPlan& plan, const PlanSlice& slice, const FetchSequence& sequence) {
  std::string key = "layers ";
  for (size_t i = 0; i < plan.routing.size(); ++i) {
    const LayerRouting& layer = plan.routing[i];
    absl::StrAppend(&key, layer.layer_id, "#", plan.layers[i].ordinal, " E", layer.num_experts, " K", layer.top_k, ",");
  }
  if (sequence.sample.empty()) {
    absl::StrAppend(&key, " handle ", sequence.handle);
  } else {
    absl::StrAppend(&key, " sample ", sequence.sample.size(), ":", sequence.sample);
  }
  if (sequence.num_tokens) absl::StrAppend(&key, " tokens ", *sequence.num_tokens);
  for (const TokenCheck& check : sequence.token_checks) absl::StrAppend(&key, " check ", check.rows, "=", check.crc32c);
  for (const RowRange rows : slice.rows) absl::StrAppend(&key, " ", rows.begin, "-", rows.end);
  return key;
}

struct StepCache::Entry {
  enum class State : uint8_t { kReading, kReady, kFailed };

  std::string key;
  State state = State::kReading;
  std::shared_ptr<const StagedRows> rows;  // Set in the state kReady.
  int64_t bytes = 0;                       // Memory of the entry. Set in the state kReady.
  bool awaited = false;                    // Prefetched, and not used yet.
  std::list<EntryPtr>::iterator place;     // Position in the list of kept entries.
  bool kept = false;
};

StepCache::StepCache(int64_t max_bytes) : max_bytes_(max_bytes) {}
StepCache::~StepCache() = default;

void StepCache::EndStep() {
  MutexLock lock(mutex_);
  ++step_;
  while (!kept_.empty()) Drop(kept_.front());
  changed_.NotifyAll();
}

void StepCache::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.NotifyAll();
}

StepCache::Counters StepCache::counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

StepCache::EntryPtr StepCache::Find(const std::string& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : found->second;
}

bool StepCache::MakeRoom(int64_t bytes) {
  int64_t excess = counters_.bytes + reserved_bytes_ + bytes - max_bytes_;
  std::vector<EntryPtr> victims;
  for (const EntryPtr& entry : kept_) {
    if (excess <= 0) break;
    if (entry->awaited || entry->rows.use_count() > 1) continue;
    victims.push_back(entry);
    excess -= entry->bytes;
  }
  if (excess > 0) return false;
  for (const EntryPtr& entry : victims) Drop(entry);
  return true;
}

void StepCache::Keep(const EntryPtr& entry) {
  entry->kept = true;
  entry->place = kept_.insert(kept_.end(), entry);
  counters_.bytes += entry->bytes;
}

void StepCache::Drop(const EntryPtr& dropped) {
  // NOLINT(performance-unnecessary-copy-initialization): `key` may belong to the erased element.
  const EntryPtr entry = dropped;
  if (entry->kept) {
    counters_.bytes -= entry->bytes;
    kept_.erase(entry->place);
    entry->kept = false;
  }
  const auto found = entries_.find(entry->key);
  if (found != entries_.end() && found->second == entry) entries_.erase(found);
}

struct CachedFetch::Slice {
  int32_t index = 0;  // Position in plan.slices.
  int32_t sequence = 0;
  std::string key;
  int64_t expected_bytes = 0;
  StepCache::EntryPtr own;                 // Set while this fetch reads the slice.
  StepCache::EntryPtr other;               // Set while another fetch reads the slice.
  std::shared_ptr<const StagedRows> rows;  // Set once the slice was read; its record may say why it has no rows.
  bool settled = false;                    // This fetch needs to do nothing more for the slice.
};

CachedFetch::CachedFetch(std::shared_ptr<StepCache> cache, const ReplayPlan& plan,
                         absl::Span<const FetchSequence> sequences, const FetchOptions& options, FetchTime time)
    : cache_(std::move(cache)), plan_(plan), sequences_(sequences), options_(options), time_(time) {
  for (const int32_t index : SlicesToRead(plan, sequences)) {
    const PlanSlice& slice = plan.slices[index];
    const int64_t bytes = plan.bytes_to_read / plan.rows_to_read * TotalRows(slice.rows);
    slices_.push_back({.index = index,
                       .sequence = slice.sequence,
                       .key = SliceKey(plan, slice, sequences[slice.sequence]),
                       .expected_bytes = bytes + kEntryBytes});
  }
  MutexLock lock(cache_->mutex_);
  step_ = cache_->step_;
}

CachedFetch::~CachedFetch() {
  MutexLock lock(cache_->mutex_);
  for (Slice& slice : slices_) {
    if (slice.own != nullptr) Close(slice, nullptr);
    slice.rows = nullptr;
  }
  cache_->changed_.NotifyAll();  // The entries of this fetch may now be evicted.
}

absl::StatusOr<std::vector<int32_t>> CachedFetch::Next(Clock::Time deadline) {
  MutexLock lock(cache_->mutex_);
  while (true) {
    if (cache_->stopped_) return MakeError(absl::StatusCode::kCancelled, "fetch: the cache is stopped", {});
    std::vector<int32_t> claimed = Claim();
    if (!claimed.empty() || IsSettled()) return claimed;
    if (cache_->changed_.WaitUntil(cache_->mutex_, deadline)) continue;
    if (Clock::Real().Now() < deadline) continue;
    return MakeError(absl::StatusCode::kDeadlineExceeded,
                     "fetch: timed out waiting for another fetch, or for room in the cache", {});
  }
}

std::vector<int32_t> CachedFetch::Claim() {
  using State = StepCache::Entry::State;
  std::vector<int32_t> claimed;
  const bool late = time_ != FetchTime::kNow && step_ != cache_->step_;  // A prefetch for an earlier step.
  for (Slice& slice : slices_) {
    slice.settled = slice.settled || late;
    if (slice.settled || slice.own != nullptr) continue;
    StepCache::EntryPtr entry = std::move(slice.other);
    slice.other = nullptr;
    if (entry == nullptr || entry->state == State::kFailed) entry = cache_->Find(slice.key);
    while (entry != nullptr && entry->state == State::kReady && !AsAgreed(slice, *entry->rows)) {
      cache_->Drop(entry);
      entry = cache_->Find(slice.key);
    }
    if (entry == nullptr) {
      if (Open(slice)) claimed.push_back(slice.index);
      continue;
    }
    if (entry->state == State::kReady) {
      Use(slice, entry);
    } else if (time_ == FetchTime::kNow) {
      slice.other = std::move(entry);
    } else {
      slice.settled = true;
    }
  }
  return claimed;
}

void CachedFetch::Use(Slice& slice, const StepCache::EntryPtr& entry) {
  slice.settled = true;
  if (time_ != FetchTime::kNow) return;
  slice.rows = entry->rows;
  entry->awaited = false;
  if (entry->kept) cache_->kept_.splice(cache_->kept_.end(), cache_->kept_, entry->place);
  ++cache_->counters_.hits;
  cache_->changed_.NotifyAll();  // Wakes prefetches that wait for room: used entries may be evicted.
}

bool CachedFetch::Open(Slice& slice) {
  if (time_ == FetchTime::kNow) {
    ++cache_->counters_.misses;
  } else {
    slice.settled = slice.expected_bytes > cache_->max_bytes_;  // Then the slice never fits into the cache.
    if (slice.settled || !cache_->MakeRoom(slice.expected_bytes)) return false;
    cache_->reserved_bytes_ += slice.expected_bytes;
  }
  slice.own = std::make_shared<StepCache::Entry>();
  slice.own->key = slice.key;
  slice.own->awaited = time_ != FetchTime::kNow;
  cache_->entries_[slice.key] = slice.own;
  return true;
}

FetchOptions CachedFetch::read_options() const {
  FetchOptions options = options_;
  if (time_ == FetchTime::kNow) return options;
  options.wait = false;
  options.missing = MissingPolicy::kLive;
  return options;
}

void CachedFetch::Give(const StagedRows& read) {
  std::vector<std::vector<StagedPiece>> pieces = PiecesBySequence(read);
  std::vector<std::pair<Slice*, std::shared_ptr<const StagedRows>>> given;
  for (Slice& slice : slices_) {
    if (slice.own == nullptr) continue;
    given.emplace_back(&slice, OneSlice(read, slice.index, slice.sequence, std::move(pieces[slice.sequence])));
  }
  MutexLock lock(cache_->mutex_);
  for (auto& [slice, rows] : given) Close(*slice, std::move(rows));
  cache_->changed_.NotifyAll();
}

void CachedFetch::Close(Slice& slice, std::shared_ptr<const StagedRows> rows) {
  using State = StepCache::Entry::State;
  StepCache& cache = *cache_;
  const StepCache::EntryPtr entry = std::exchange(slice.own, nullptr);
  if (time_ != FetchTime::kNow) cache.reserved_bytes_ -= slice.expected_bytes;
  const bool current = cache.Find(slice.key) == entry && step_ == cache.step_;
  if (rows == nullptr || rows->records[0].status != SampleStatus::kOk) {
    entry->state = State::kFailed;
    cache.Drop(entry);
  } else {
    entry->state = State::kReady;
    entry->rows = rows;
    entry->bytes = BytesOf(*rows, slice.key);
    cache.counters_.bytes_read += static_cast<int64_t>(rows->staging.size());
    if (current && cache.MakeRoom(entry->bytes)) {
      cache.Keep(entry);
    } else {
      cache.Drop(entry);
    }
  }
  slice.settled = rows != nullptr;
  if (time_ == FetchTime::kNow) slice.rows = std::move(rows);
}

absl::StatusOr<StagedRows> CachedFetch::Take(absl::string_view why_not) const {
  StagedRows out;
  if (time_ != FetchTime::kNow) return out;
  std::vector<int32_t> indices;
  for (const Slice& slice : slices_) indices.push_back(slice.index);
  StagingSink sink(plan_, indices, sequences_, options_, out);
  for (int32_t i = 0; i < static_cast<int32_t>(slices_.size()); ++i) {
    const StagedRows* rows = slices_[i].rows.get();
    SampleRecord record{.status = SampleStatus::kNotReady, .message = std::string(why_not)};
    if (rows != nullptr) record = rows->records[0];
    record.index = i;
    RR_RETURN_IF_ERROR(sink.OnRecord(record));
    if (rows == nullptr) continue;
    const auto begin = static_cast<int64_t>(out.staging.size());
    out.staging.insert(out.staging.end(), rows->staging.begin(), rows->staging.end());
    for (StagedPiece piece : rows->pieces) {
      piece.sequence = slices_[i].sequence;
      piece.offset += begin;
      out.pieces.push_back(piece);
    }
  }
  return out;
}

bool CachedFetch::IsReading() const {
  return std::any_of(slices_.begin(), slices_.end(), [](const Slice& slice) { return slice.own != nullptr; });
}

bool CachedFetch::IsSettled() const {
  return std::all_of(slices_.begin(), slices_.end(), [](const Slice& slice) { return slice.settled; });
}

bool CachedFetch::AsAgreed(const Slice& slice, const StagedRows& rows) const {
  const std::optional<uint64_t>& agreed = sequences_[slice.sequence].content_id;
  return !agreed || *agreed == rows.records[0].content_id;
}

}  // namespace routing_replay::trainer
