#include "server/store/memory/sample.h"

#include <algorithm>
#include <utility>

#include "proto/wire/status_macros.h"
#include "server/store/store_rules.h"

namespace routing_replay::server {

std::optional<absl::StatusOr<AppendAck>> MemorySample::Append(AppendCommand& command, ParentRows& parent) {
  Work work;
  std::optional<absl::StatusOr<AppendAck>> ack;
  {
    MutexLock lock(mutex());
    if (phase_ == Phase::kRemoved) return std::nullopt;
    ack = AppendLocked(command, parent, work);
    if (ack->ok()) {
      Touch();
    } else {
      ack = Describe(ack->status());
    }
  }
  if (work.changed) Notify();
  return ack;
}

absl::StatusOr<AppendAck> MemorySample::AppendLocked(AppendCommand& command, ParentRows& parent, Work& work) {
  const AppendHeader& header = command.header;
  RR_ASSIGN_OR_RETURN(const IncarnationStep step, CheckIncarnation(living(), header));
  if (step != IncarnationStep::kContinue) {
    RR_ASSIGN_OR_RETURN(work.incarnation,
                        NewIncarnation(step, living(), header, run_->info.options.block_rows, parent));
  }
  const SampleContent& content = work.incarnation ? *work.incarnation : content_;
  RR_ASSIGN_OR_RETURN(const AppendPlan plan, PlanAppend(run_->info, content, header, command.blocks));
  if (work.incarnation || !KeepsContent(plan)) {
    RR_RETURN_IF_ERROR(Prepare(command, plan, work));
    work.next = NextContent(content, work.incarnation.has_value(), header, plan, run_->content_ids);
    const int64_t first_window = work.incarnation ? 0 : plan.added.begin / run_->info.options.block_rows;
    RR_RETURN_IF_ERROR(Write(first_window, work));
    Commit(work);
  } else if (header.group && *header.group != content_.group) {
    work.next = content_.WithoutPieces();
    work.next->group = *header.group;
    const int64_t windows = WindowCount(content_.rows(), run_->info.options.block_rows);
    RR_RETURN_IF_ERROR(Write(windows, work));
    content_.group = *header.group;
  }
  return AckOf(id(), content_, plan);
}

absl::Status MemorySample::Prepare(AppendCommand& command, const AppendPlan& plan, Work& work) {
  const SampleContent& content = work.incarnation ? *work.incarnation : content_;
  PieceChange& change =
      work.change.emplace(run_->info, *run_->home, content.pieces, std::move(command.blocks), plan.added, plan.seals);
  int64_t bytes = change.cost() - change.reclaimable_bytes() - metadata_bytes_ + content.metadata_bytes() +
                  content.growth_bytes(plan.added.end, plan.unrecorded.size());
  if (work.incarnation) bytes -= content_.pieces.exclusive_bytes();
  work.pool = std::move(command.reservation);
  RR_RETURN_IF_ERROR(Pay(bytes, work.pool));
  return change.Merge();
}

MemorySample::MemorySample(std::shared_ptr<const RunContext> run, absl::string_view id, int64_t handle,
                           Producer producer, Clock::Time last_used)
    : run_(std::move(run)),
      id_(id),
      handle_(handle),
      last_used_(last_used),
      producer_(producer),
      content_(TokenChecks(run_->info.options.block_rows)) {}

MemorySample::~MemorySample() { TakeMetadata().Release(); }

absl::Status MemorySample::Adopt(SampleContent content) {
  MutexLock lock(mutex());
  std::vector<StoredBlock*> blocks;  // Blocks not charged yet: a fork shares blocks with its parent.
  int64_t bytes = content.metadata_bytes();
  for (const RowPiece& piece : content.pieces.all()) {
    if (piece.stored->charged()) continue;
    blocks.push_back(piece.stored.get());
    bytes += piece.stored->cost();
  }
  ByteReservation pool;
  RR_RETURN_IF_ERROR(Pay(bytes, pool));
  for (StoredBlock* block : blocks) block->Charge(pool);
  content_ = std::move(content);
  ChargeMetadata(pool);
  phase_ = Phase::kAlive;
  CountUsage(+1);
  return absl::OkStatus();
}

template <typename... Arguments>
absl::StatusOr<SampleState> MemorySample::Change(absl::StatusOr<SampleState> (MemorySample::*change)(Work&,
                                                                                                     Arguments...),
                                                 Arguments... arguments) {
  Work work;
  absl::StatusOr<SampleState> state;
  {
    MutexLock lock(mutex());
    RR_RETURN_IF_ERROR(CheckAlive());
    state = (this->*change)(work, arguments...);
    if (!state.ok()) state = Describe(state.status());
  }
  if (work.changed) Notify();
  return state;
}

absl::StatusOr<SampleState> MemorySample::Seal(int64_t num_tokens, int64_t revision) {
  return Change(&MemorySample::SealLocked, num_tokens, revision);
}

absl::StatusOr<SampleState> MemorySample::SealLocked(Work& work, int64_t num_tokens, int64_t revision) {
  RR_RETURN_IF_ERROR(CheckSeal(content_, num_tokens, revision));
  if (!content_.sealed()) {
    const int64_t rows = content_.rows();
    PieceChange& change =
        work.change.emplace(run_->info, *run_->home, content_.pieces, std::vector<Block>(), RowRange{rows, rows}, true);
    RR_RETURN_IF_ERROR(Pay(change.cost() - change.reclaimable_bytes(), work.pool));
    RR_RETURN_IF_ERROR(change.Merge());
    work.next = SealedContent(content_, num_tokens);
    RR_RETURN_IF_ERROR(Write(rows / run_->info.options.block_rows, work));
    Commit(work);
  }
  Touch();
  return State();
}

absl::StatusOr<SampleState> MemorySample::Truncate(int64_t rows, std::optional<int64_t> expected_revision) {
  return Change(&MemorySample::TruncateLocked, rows, expected_revision);
}

absl::StatusOr<SampleState> MemorySample::TruncateLocked(Work& work, int64_t rows,
                                                         std::optional<int64_t> expected_revision) {
  RR_RETURN_IF_ERROR(CheckTruncate(content_, rows, expected_revision));
  work.next = TruncatedContent(content_, rows, run_->content_ids);
  RR_RETURN_IF_ERROR(Write(rows / run_->info.options.block_rows, work));
  CountUsage(-1);
  work.replaced = content_.pieces.Truncate(rows);
  work.next->pieces = std::move(content_.pieces);
  std::swap(content_, *work.next);
  ChargeMetadata(work.pool);
  CountUsage(+1);
  work.changed = true;
  Touch();
  return State();
}

absl::StatusOr<SampleSnapshot> MemorySample::Snapshot(absl::Span<const RowRange> rows, const AdmitSnapshot& admit) {
  MutexLock lock(mutex());
  RR_RETURN_IF_ERROR(CheckAlive());
  Touch();
  std::vector<StoredRows> found;
  for (RowRange range : rows) {
    for (RowPiece& piece : content_.pieces.Find(range)) found.push_back({std::move(piece.stored), piece.rows});
  }
  if (admit) {
    RR_RETURN_IF_ERROR(admit(SnapshotBytes(content_, found.size())));
  }
  return SampleSnapshot{.state = State(), .rows = std::move(found), .tokens = content_.tokens};
}

absl::StatusOr<SampleState> MemorySample::Stat() const {
  MutexLock lock(mutex());
  RR_RETURN_IF_ERROR(CheckAlive());
  return State();
}

absl::StatusOr<SampleContent> MemorySample::Prefix(const PrefixReference& prefix) {
  MutexLock lock(mutex());
  RR_RETURN_IF_ERROR(CheckAlive());
  return TakePrefix(content_, prefix);
}

bool MemorySample::spillable() const { return phase_ == Phase::kAlive && content_.sealed(); }

int64_t MemorySample::spillable_bytes() const {
  MutexLock lock(mutex());
  if (!spillable()) return 0;
  int64_t bytes = 0;
  for (const RowPiece& piece : content_.pieces.all()) bytes += piece.stored->spillable_bytes();
  return bytes;
}

absl::StatusOr<int64_t> MemorySample::Spill() const {
  std::vector<std::shared_ptr<StoredBlock>> blocks;
  {
    MutexLock lock(mutex());
    if (!spillable()) return 0;
    for (const RowPiece& piece : content_.pieces.all()) blocks.push_back(piece.stored);
  }
  int64_t freed = 0;
  for (const std::shared_ptr<StoredBlock>& block : blocks) {
    const int64_t bytes = block->spillable_bytes();
    RR_RETURN_IF_ERROR(block->Spill());
    freed += bytes;
  }
  return freed;
}

std::optional<int64_t> MemorySample::group() const {
  MutexLock lock(mutex());
  if (phase_ != Phase::kAlive) return std::nullopt;
  return content_.group;
}

absl::StatusOr<std::optional<MemorySample::Remains>> MemorySample::Remove(Clock::Time unused_since) {
  MutexLock lock(mutex());
  if (phase_ != Phase::kAlive || last_used() > unused_since) return std::nullopt;
  if (run_->journal != nullptr) {
    RR_RETURN_IF_ERROR(run_->journal->Remove(producer_, id()));
  }
  return EndLocked();
}

std::optional<MemorySample::Remains> MemorySample::End() {
  MutexLock lock(mutex());
  if (phase_ != Phase::kAlive) return std::nullopt;
  return EndLocked();
}

MemorySample::Remains MemorySample::EndLocked() {
  CountUsage(-1);
  phase_ = Phase::kRemoved;
  return {.pieces = std::move(content_.pieces), .metadata = TakeMetadata()};
}

int64_t MemorySample::Remains::Free() {
  int64_t bytes = metadata.bytes();
  metadata.Release();
  for (RowPiece& piece : pieces.TakeFrom(0)) {
    if (piece.exclusive()) bytes += piece.stored->cost();
    piece.stored.reset();
  }
  return bytes;
}

bool MemorySample::RemoveUnborn() {
  MutexLock lock(mutex());
  if (phase_ != Phase::kUnborn) return false;
  phase_ = Phase::kRemoved;
  return true;
}

absl::Status MemorySample::Write(int64_t first_window, const Work& work) {
  if (run_->journal == nullptr) return absl::OkStatus();
  const int32_t block_rows = run_->info.options.block_rows;
  const RowPieces& pieces = work.incarnation ? work.incarnation->pieces : content_.pieces;
  const int64_t first_row = first_window * block_rows;
  std::vector<RowPiece> written;
  if (work.change) {
    for (size_t i = pieces.FirstEndingAfter(first_row); i < work.change->first_piece(); ++i) {
      written.push_back(pieces[i]);
    }
    written.insert(written.end(), work.change->tail().begin(), work.change->tail().end());
  } else {
    written = pieces.Find({first_row, work.next->rows()});
  }
  SampleChange change{.producer = producer_,
                      .sample = id(),
                      .block_rows = block_rows,
                      .lists = *work.next,
                      .first_window = first_window,
                      .windows_before = WindowCount(content_.rows(), block_rows),
                      .pieces = written,
                      .grows = work.next->rows() > content_.rows()};
  if (work.change) change.added = work.change->added();
  return run_->journal->Write(change);
}

void MemorySample::Commit(Work& work) {
  CountUsage(-1);
  RowPieces& pieces = work.incarnation ? work.incarnation->pieces : content_.pieces;
  work.pool.Merge(TakeMetadata());
  if (work.incarnation) content_.pieces.TakeExclusiveCharges(work.pool);
  work.replaced = work.change->Commit(pieces, work.pool);
  work.next->pieces = std::move(pieces);
  std::swap(content_, *work.next);
  ChargeMetadata(work.pool);
  phase_ = Phase::kAlive;
  CountUsage(+1);
  work.changed = true;
}

absl::Status MemorySample::Pay(int64_t bytes, ByteReservation& pool) const {
  if (bytes <= pool.bytes()) return absl::OkStatus();
  RR_ASSIGN_OR_RETURN(ByteReservation more, run_->budget.Reserve(bytes - pool.bytes()));
  pool.Merge(std::move(more));
  return absl::OkStatus();
}

ByteReservation MemorySample::TakeMetadata() {
  run_->usage->stored_bytes -= metadata_bytes_;
  return run_->budget.Attach(std::exchange(metadata_bytes_, 0));
}

void MemorySample::ChargeMetadata(ByteReservation& pool) {
  pool.Merge(TakeMetadata());
  metadata_bytes_ = pool.Split(content_.metadata_bytes()).Detach();
  run_->usage->stored_bytes += metadata_bytes_;
}

absl::Status MemorySample::CheckAlive() const {
  if (phase_ == Phase::kAlive) return absl::OkStatus();
  return NoSampleError(id());
}

absl::Status MemorySample::Describe(const absl::Status& status) const { return WithContent(status, id(), living()); }

SampleState MemorySample::State() const {
  SampleState state = StateOf({id(), handle_, producer_}, content_);
  state.stored_bytes = metadata_bytes_ + content_.pieces.charged_bytes();
  state.idle_ms = std::chrono::duration_cast<std::chrono::milliseconds>(run_->clock.Now() - last_used()).count();
  return state;
}

void MemorySample::CountUsage(int sign) const {
  if (phase_ != Phase::kAlive) return;
  run_->usage->samples += sign;
  run_->usage->sealed_samples += content_.sealed() ? sign : 0;
  run_->usage->committed_rows += sign * content_.rows();
}

std::shared_ptr<MemorySample> SampleIndex::FindIn(const Shard& shard, const HandleKey& key) {
  const auto it = shard.by_handle.find(key);
  return it == shard.by_handle.end() ? nullptr : it->second;
}

std::shared_ptr<MemorySample> SampleIndex::Find(int64_t handle, absl::string_view id, Producer producer) const {
  const Shard& shard = ShardOf(handle);
  MutexLock lock(shard.mutex);
  std::shared_ptr<MemorySample> sample = FindIn(shard, {handle, producer});
  if (sample != nullptr && !id.empty() && id != sample->id()) return nullptr;
  return sample;
}

absl::StatusOr<std::shared_ptr<MemorySample>> SampleIndex::FindOrInsert(int64_t handle, const std::string& id,
                                                                        Producer producer, Clock::Time last_used) {
  Shard& shard = ShardOf(handle);
  MutexLock lock(shard.mutex);
  if (shard.closed) return NoRunError(run_->info.run);
  for (Producer p : {Producer::kRollout, Producer::kTrainer}) {
    std::shared_ptr<MemorySample> sample = FindIn(shard, {handle, p});
    if (sample == nullptr) continue;
    if (sample->id() != id) return HandleCollisionError(id, sample->id());
    if (p == producer) return sample;
  }
  return Insert(shard, handle, id, producer, last_used);
}

std::shared_ptr<MemorySample> SampleIndex::Insert(Shard& shard, int64_t handle, const std::string& id,
                                                  Producer producer, Clock::Time last_used) {
  auto sample = std::make_shared<MemorySample>(run_, id, handle, producer, last_used);
  sample->set_due(last_used + run_->info.options.ttl);
  shard.by_handle.emplace(HandleKey{handle, producer}, sample);
  shard.by_id.insert(sample.get());
  shard.by_due.insert(sample.get());
  return sample;
}

void SampleIndex::Remove(const MemorySample& sample) {
  Shard& shard = ShardOf(sample.handle());
  std::shared_ptr<MemorySample> removed;  // Freed after the lock is released.
  MutexLock lock(shard.mutex);
  const auto it = shard.by_handle.find(HandleKey{sample.handle(), sample.producer()});
  if (it == shard.by_handle.end() || it->second.get() != &sample) return;
  removed = it->second;
  shard.by_due.erase(removed.get());
  shard.by_id.erase(removed.get());
  shard.by_handle.erase(it);
}

std::vector<std::shared_ptr<MemorySample>> SampleIndex::After(Producer producer, absl::string_view id,
                                                              size_t limit) const {
  std::vector<std::shared_ptr<MemorySample>> found;
  const auto by_id = [](const auto& a, const auto& b) { return a->id() < b->id(); };
  for (const Shard& shard : shards_) {
    const size_t middle = found.size();
    MutexLock lock(shard.mutex);
    auto it = shard.by_id.upper_bound(id);
    for (; it != shard.by_id.end() && found.size() - middle < limit; ++it) {
      if ((*it)->producer() != producer) continue;
      if (middle == limit && (*it)->id() > found[limit - 1]->id()) break;  // The samples after it have even higher ids.
      found.push_back(FindIn(shard, {(*it)->handle(), producer}));
    }
    std::inplace_merge(found.begin(), found.begin() + static_cast<int64_t>(middle), found.end(), by_id);
    if (found.size() > limit) found.resize(limit);
  }
  return found;
}

std::vector<std::shared_ptr<MemorySample>> SampleIndex::OfShard(size_t shard_index) const {
  std::vector<std::shared_ptr<MemorySample>> all;
  const Shard& shard = shards_[shard_index];
  MutexLock lock(shard.mutex);
  all.reserve(shard.by_handle.size());
  for (const auto& [key, sample] : shard.by_handle) all.push_back(sample);
  return all;
}

std::vector<std::shared_ptr<MemorySample>> SampleIndex::FindIdle(size_t shard_index, Clock::Time now, int64_t limit) {
  Shard& shard = shards_[shard_index];
  const Clock::Duration ttl = run_->info.options.ttl;
  std::vector<std::shared_ptr<MemorySample>> idle;
  std::vector<MemorySample*> used;
  MutexLock lock(shard.mutex);
  for (MemorySample* due : shard.by_due) {
    if (due->due() > now || static_cast<int64_t>(idle.size()) == limit) break;
    if (due->last_used() + ttl <= now) {
      idle.push_back(FindIn(shard, {due->handle(), due->producer()}));
    } else {
      used.push_back(due);
    }
  }
  // A sample that was used since it was queued is queued again with its new time, once per TTL.
  for (MemorySample* sample : used) {
    shard.by_due.erase(sample);
    sample->set_due(sample->last_used() + ttl);
    shard.by_due.insert(sample);
  }
  return idle;
}

std::vector<std::shared_ptr<MemorySample>> SampleIndex::Close() {
  std::vector<std::shared_ptr<MemorySample>> all;
  for (Shard& shard : shards_) {
    MutexLock lock(shard.mutex);
    shard.closed = true;
    for (auto& [key, sample] : shard.by_handle) all.push_back(std::move(sample));
    shard.by_handle = {};
    shard.by_id.clear();
    shard.by_due.clear();
  }
  // Freeing a million samples is several times as fast in the order in which they lie in memory.
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace routing_replay::server
