#include "server/store/memory/sample.h"

#include <algorithm>
#include <utility>

#include "server/store/store_errors.h"

namespace routing_replay {

MemorySample::MemorySample(std::shared_ptr<const RunContext> run, std::string id, int64_t handle, Producer producer,
                           Clock::Time last_used)
    : run_(std::move(run)),
      id_(std::move(id)),
      handle_(handle),
      producer_(producer),
      birth_(run_->content_ids.Next()),
      last_used_(last_used),
      content_(TokenChecks(run_->info.options.block_rows)) {}

absl::Status MemorySample::Adopt(SampleContent content) {
  MutexLock lock(mutex_);
  std::vector<StoredBlock*> blocks;  // Those that no sample before has brought in.
  int64_t bytes = content.metadata_bytes();
  for (const RowPiece& piece : content.pieces.all()) {
    if (piece.stored->charge.bytes() != 0) continue;
    blocks.push_back(piece.stored.get());
    bytes += piece.stored->cost;
  }
  ByteReservation pool;
  if (absl::Status status = Pay(bytes, pool); !status.ok()) return status;
  for (StoredBlock* block : blocks) block->charge = StoredCharge(pool.Split(block->cost), run_->usage);
  content_ = std::move(content);
  ChargeMetadata(pool);
  life_ = Life::kAlive;
  CountUsage(+1);
  return absl::OkStatus();
}

absl::StatusOr<SampleState> MemorySample::Seal(int64_t num_tokens, int64_t revision) {
  Work work;
  absl::StatusOr<SampleState> state;
  {
    MutexLock lock(mutex_);
    if (absl::Status status = CheckAlive(); !status.ok()) return status;
    state = SealLocked(num_tokens, revision, work);
    if (!state.ok()) return Describe(state.status());
  }
  if (work.changed) Notify();
  return state;
}

absl::StatusOr<SampleState> MemorySample::SealLocked(int64_t num_tokens, int64_t revision, Work& work) {
  if (absl::Status status = CheckSeal(content_, num_tokens, revision); !status.ok()) return status;
  if (!content_.sealed()) {
    const int64_t rows = content_.rows();
    PieceChange& change =
        work.change.emplace(run_->info, *run_->home, content_.pieces, std::vector<Block>(), RowRange{rows, rows}, true);
    if (absl::Status status = Pay(change.cost() - change.reclaimable_bytes(), work.pool); !status.ok()) return status;
    if (absl::Status status = change.Merge(); !status.ok()) return status;
    work.next = SealedContent(content_, num_tokens);
    if (absl::Status status = Write(rows / run_->info.options.block_rows, work); !status.ok()) return status;
    Commit(work);
  }
  Touch();
  return State();
}

absl::StatusOr<SampleState> MemorySample::Truncate(int64_t rows, std::optional<int64_t> expected_revision) {
  Work work;
  absl::StatusOr<SampleState> state;
  {
    MutexLock lock(mutex_);
    if (absl::Status status = CheckAlive(); !status.ok()) return status;
    state = TruncateLocked(rows, expected_revision, work);
    if (!state.ok()) return Describe(state.status());
  }
  Notify();
  return state;
}

absl::StatusOr<SampleState> MemorySample::TruncateLocked(int64_t rows, std::optional<int64_t> expected_revision,
                                                         Work& work) {
  if (absl::Status status = CheckTruncate(content_, rows, expected_revision); !status.ok()) return status;
  work.next = TruncatedContent(content_, rows, run_->content_ids);
  if (absl::Status status = Write(rows / run_->info.options.block_rows, work); !status.ok()) return status;
  CountUsage(-1);
  work.replaced = content_.pieces.Truncate(rows);
  work.next->pieces = std::move(content_.pieces);
  std::swap(content_, *work.next);
  ChargeMetadata(work.pool);
  CountUsage(+1);
  Touch();
  return State();
}

absl::StatusOr<SampleSnapshot> MemorySample::Snapshot(absl::Span<const RowRange> rows) {
  MutexLock lock(mutex_);
  if (absl::Status status = CheckAlive(); !status.ok()) return status;
  Touch();
  SampleSnapshot snapshot{.state = State(), .tokens = content_.tokens};
  for (RowRange range : rows) {
    for (RowPiece& piece : content_.pieces.Find(range)) {
      snapshot.rows.push_back({std::move(piece.stored), piece.rows});
    }
  }
  return snapshot;
}

absl::StatusOr<SampleState> MemorySample::Stat() const {
  MutexLock lock(mutex_);
  if (absl::Status status = CheckAlive(); !status.ok()) return status;
  return State();
}

absl::StatusOr<SampleContent> MemorySample::Prefix(const PrefixReference& prefix) const {
  MutexLock lock(mutex_);
  if (absl::Status status = CheckAlive(); !status.ok()) return status;
  return TakePrefix(content_, prefix);
}

bool MemorySample::alive() const {
  MutexLock lock(mutex_);
  return life_ == Life::kAlive;
}

std::optional<int64_t> MemorySample::group() const {
  MutexLock lock(mutex_);
  if (life_ != Life::kAlive) return std::nullopt;
  return content_.group;
}

absl::StatusOr<std::optional<CountedSample::RowsSince>> MemorySample::RecordedSince(int64_t row) const {
  MutexLock lock(mutex_);
  if (life_ != Life::kAlive) return std::nullopt;
  return RowsSince{.revision = content_.revision,
                   .group = content_.group,
                   .committed_rows = content_.rows(),
                   .pieces = content_.pieces.Find({row, std::max(row, content_.rows())})};
}

absl::StatusOr<std::optional<MemorySample::Remains>> MemorySample::Remove(Clock::Time unused_since) {
  MutexLock lock(mutex_);
  if (life_ != Life::kAlive || last_used() > unused_since) return std::nullopt;
  return RemoveLocked();
}

absl::StatusOr<MemorySample::Released> MemorySample::Release(ReleaseMode mode, std::optional<uint64_t> content_id) {
  MutexLock lock(mutex_);
  if (life_ != Life::kAlive) return Released{};
  Released released{.step = CheckRelease(content_, mode, content_id)};
  if (released.step == ReleaseStep::kKeep) {
    if (absl::Status status = WriteHead(KeptContent(content_)); !status.ok()) return status;
    content_.awaits_checkpoint = true;
    Touch();
  } else if (released.step == ReleaseStep::kEnd) {
    absl::StatusOr<Remains> remains = RemoveLocked();
    if (!remains.ok()) return remains.status();
    released.remains = *std::move(remains);
  }
  return released;
}

absl::StatusOr<MemorySample::Remains> MemorySample::RemoveLocked() {
  if (run_->journal != nullptr) {
    if (absl::Status status = run_->journal->Remove(producer_, id_); !status.ok()) return status;
  }
  return EndLocked();
}

absl::Status MemorySample::NoteUse() {
  MutexLock lock(mutex_);
  if (life_ != Life::kAlive || run_->journal == nullptr) return absl::OkStatus();
  return run_->journal->NoteUse(producer_, id_);
}

std::optional<MemorySample::Remains> MemorySample::End() {
  MutexLock lock(mutex_);
  if (life_ != Life::kAlive) return std::nullopt;
  return EndLocked();
}

MemorySample::Remains MemorySample::EndLocked() {
  CountUsage(-1);
  life_ = Life::kRemoved;
  Remains remains{SampleContent{TokenChecks(run_->info.options.block_rows)}, std::move(metadata_charge_)};
  std::swap(remains.content, content_);
  return remains;
}

int64_t MemorySample::Remains::Free() {
  int64_t bytes = metadata_charge.bytes();
  metadata_charge.Take().Release();
  for (RowPiece& piece : content.pieces.TakeFrom(0)) {
    if (piece.exclusive()) bytes += piece.stored->cost;
    piece.stored.reset();
  }
  return bytes;
}

bool MemorySample::RemoveUnborn() {
  MutexLock lock(mutex_);
  if (life_ != Life::kUnborn) return false;
  life_ = Life::kRemoved;
  return true;
}

absl::Status MemorySample::Write(int64_t first_window, const Work& work) {
  if (run_->journal == nullptr) return absl::OkStatus();
  const RowPieces& pieces = work.life ? work.life->pieces : content_.pieces;
  const int64_t first_row = first_window * run_->info.options.block_rows;
  if (!work.change) {
    return WriteContent(*work.next, first_window, pieces.Find({first_row, work.next->rows()}), {});
  }
  std::vector<RowPiece> written;
  for (size_t i = pieces.FirstEndingAfter(first_row); i < work.change->first_piece(); ++i) written.push_back(pieces[i]);
  written.insert(written.end(), work.change->tail().begin(), work.change->tail().end());
  return WriteContent(*work.next, first_window, written, work.change->added());
}

absl::Status MemorySample::WriteContent(const SampleContent& next, int64_t first_window,
                                        absl::Span<const RowPiece> pieces,
                                        absl::Span<const std::shared_ptr<StoredBlock>> added) {
  const int32_t block_rows = run_->info.options.block_rows;
  return run_->journal->Write({.producer = producer_,
                               .sample = id_,
                               .block_rows = block_rows,
                               .lists = next,
                               .first_window = first_window,
                               .windows_before = WindowCount(content_.rows(), block_rows),
                               .pieces = pieces,
                               .added = added});
}

void MemorySample::Commit(Work& work) {
  CountUsage(-1);
  RowPieces& pieces = work.life ? work.life->pieces : content_.pieces;
  work.pool.Merge(metadata_charge_.Take());
  if (work.life) content_.pieces.TakeExclusiveCharges(work.pool);
  work.replaced = work.change->Commit(pieces, work.pool, run_->usage);
  work.next->pieces = std::move(pieces);
  std::swap(content_, *work.next);
  ChargeMetadata(work.pool);
  life_ = Life::kAlive;
  CountUsage(+1);
  work.changed = true;
}

absl::Status MemorySample::Pay(int64_t bytes, ByteReservation& pool) const {
  if (bytes <= pool.bytes()) return absl::OkStatus();
  absl::StatusOr<ByteReservation> more = run_->budget.Reserve(bytes - pool.bytes());
  if (!more.ok()) return more.status();
  pool.Merge(*std::move(more));
  return absl::OkStatus();
}

void MemorySample::ChargeMetadata(ByteReservation& pool) {
  pool.Merge(metadata_charge_.Take());
  metadata_charge_ = StoredCharge(pool.Split(content_.metadata_bytes()), run_->usage);
}

absl::Status MemorySample::CheckAlive() const {
  if (life_ == Life::kAlive) return absl::OkStatus();
  return NoSampleError(id_);
}

absl::Status MemorySample::Describe(const absl::Status& status) const { return WithContent(status, id_, living()); }

SampleState MemorySample::State() const {
  SampleState state = StateOf({id_, handle_, producer_}, content_);
  state.stored_bytes = metadata_charge_.bytes() + content_.pieces.charged_bytes();
  state.idle_ms = std::chrono::duration_cast<std::chrono::milliseconds>(run_->clock.Now() - last_used()).count();
  return state;
}

void MemorySample::CountUsage(int sign) const {
  if (life_ != Life::kAlive) return;
  run_->usage->samples += sign;
  run_->usage->sealed_samples += content_.sealed() ? sign : 0;
  run_->usage->committed_rows += sign * content_.rows();
}

}  // namespace routing_replay
