#include "server/store/memory/sample.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/provenance.h"
#include "server/store/store_errors.h"

namespace routing_replay {

MemorySample::MemorySample(std::shared_ptr<const RunContext> run, std::string id, int64_t handle, Producer producer)
    : run_(std::move(run)),
      id_(std::move(id)),
      handle_(handle),
      producer_(producer),
      birth_(run_->content_ids.Next()),
      last_used_(run_->clock.Now()),
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
  if (absl::Status status = CheckRevision(revision); !status.ok()) return status;
  const int64_t rows = content_.rows();
  if (content_.sealed() && *content_.num_tokens != num_tokens) {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("the sample is sealed with ", *content_.num_tokens, " tokens"),
                     {.reason = Reason::kSealed});
  }
  if (num_tokens < 1 || num_tokens - 1 < rows) {
    return MakeError(absl::StatusCode::kInvalidArgument,
                     absl::StrCat("num_tokens: ", num_tokens, ", but ", rows, " rows are committed"),
                     {.reason = Reason::kRowCount, .field = "num_tokens"});
  }
  if (num_tokens - 1 > rows) {
    ErrorDetail detail{.reason = Reason::kNotCommitted, .field = "num_tokens"};
    detail.missing_rows = {{rows, num_tokens - 1}};
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("rows ", ToString(detail.missing_rows[0]), " are not committed"), detail);
  }
  if (!content_.sealed()) {
    PieceChange& change =
        work.change.emplace(run_->info, *run_->home, content_.pieces, std::vector<Block>(), RowRange{rows, rows}, true);
    if (absl::Status status = Pay(change.cost() - change.reclaimable_bytes(), work.pool); !status.ok()) return status;
    if (absl::Status status = change.Merge(); !status.ok()) return status;
    work.next = content_.WithoutPieces();
    work.next->num_tokens = num_tokens;
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
  if (expected_revision) {
    if (absl::Status status = CheckRevision(*expected_revision); !status.ok()) return status;
  }
  if (rows < 0) {
    return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("rows: ", rows, " is negative"),
                     {.reason = Reason::kField, .field = "rows"});
  }
  if (rows > content_.rows()) {
    return MakeError(absl::StatusCode::kOutOfRange,
                     absl::StrCat("rows: ", rows, " are more than the ", content_.rows(), " committed ones"),
                     {.reason = Reason::kNotCommitted, .field = "rows"});
  }
  work.next = content_.WithoutPieces();
  work.next->Truncate(rows);
  ++work.next->revision;
  work.next->restart_nonce = 0;
  work.next->content_id = run_->content_ids.Next();
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
  SampleSnapshot snapshot{.state = State()};
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

absl::StatusOr<std::optional<bool>> MemorySample::MatchesTokens(const TokenCheck& check) const {
  MutexLock lock(mutex_);
  if (absl::Status status = CheckAlive(); !status.ok()) return status;
  const std::optional<uint32_t> stored = content_.tokens.At(check.rows);
  return stored ? std::optional(*stored == check.crc32c) : std::nullopt;
}

absl::StatusOr<SampleContent> MemorySample::Prefix(const PrefixReference& prefix) const {
  MutexLock lock(mutex_);
  if (absl::Status status = CheckAlive(); !status.ok()) return status;
  if (prefix.revision != content_.revision) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat("append.prefix.revision: ", prefix.revision, ", but ", id_, " is at revision ", content_.revision),
        {.reason = Reason::kOldRevision, .field = "append.prefix.revision"});
  }
  if (prefix.rows > content_.rows()) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat("append.prefix.rows: ", prefix.rows, ", but ", id_, " has ", content_.rows(), " committed rows"),
        {.reason = Reason::kNotCommitted, .field = "append.prefix.rows"});
  }
  return content_.Prefix(prefix.rows);
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

std::optional<MemorySample::RowsSince> MemorySample::RecordedSince(int64_t row) const {
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
  if (run_->journal != nullptr) {
    if (absl::Status status = run_->journal->Remove(producer_, id_); !status.ok()) return status;
  }
  return EndLocked();
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

absl::Status MemorySample::Write(int64_t first_window, Work& work) {
  if (run_->journal == nullptr) return absl::OkStatus();
  SampleContent written = work.next->WithoutPieces();
  const RowPieces& pieces = work.life ? work.life->pieces : content_.pieces;
  const int64_t first_row = first_window * run_->info.options.block_rows;
  const size_t end = work.change ? work.change->first_piece() : pieces.size();
  for (size_t i = pieces.FirstEndingAfter(first_row); i < end; ++i) written.pieces.Append(pieces[i]);
  if (!work.change) {
    written.pieces.Truncate(written.rows());
    return WriteContent(written, first_window, {});
  }
  for (const RowPiece& piece : work.change->tail()) written.pieces.Append(piece);
  return WriteContent(written, first_window, work.change->added());
}

absl::Status MemorySample::WriteContent(const SampleContent& next, int64_t first_window,
                                        absl::Span<const std::shared_ptr<StoredBlock>> added) {
  const int64_t block_rows = run_->info.options.block_rows;
  return run_->journal->Write({.producer = producer_,
                               .sample = id_,
                               .block_rows = run_->info.options.block_rows,
                               .content = next,
                               .first_window = first_window,
                               .windows_before = (content_.rows() + block_rows - 1) / block_rows,
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

absl::Status MemorySample::CheckRevision(int64_t revision) const {
  if (revision == content_.revision) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("revision ", revision, " is not the sample's, which is ", content_.revision),
                   {.reason = Reason::kOldRevision});
}

absl::Status MemorySample::Describe(const absl::Status& status) const {
  ErrorDetail detail = GetErrorDetail(status).value_or(ErrorDetail{});
  detail.sample = id_;
  if (life_ == Life::kAlive) {
    if (!detail.committed_rows) detail.committed_rows = content_.rows();
    detail.revision = content_.revision;
  }
  return MakeError(status.code(), status.message(), detail);
}

SampleState MemorySample::State() const {
  SampleState state{.sample = id_, .handle = handle_, .producer = producer_};
  state.group = content_.group;
  state.committed_rows = content_.rows();
  state.num_tokens = content_.num_tokens;
  state.revision = content_.revision;
  state.content_id = content_.content_id;
  state.unrecorded = content_.unrecorded;
  state.weights = WeightSpansOf(content_.provenance);
  state.provenance = content_.provenance;
  state.stored_bytes = metadata_charge_.bytes() + content_.pieces.charged_bytes();
  if (const std::optional<uint32_t> check = content_.tokens.At(content_.rows())) {
    state.token_check = TokenCheck{content_.rows(), *check};
  }
  state.engine = content_.engine;
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
