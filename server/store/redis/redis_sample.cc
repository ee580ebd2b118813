#include "server/store/redis/redis_sample.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/block/merge.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/redis/read_ahead.h"
#include "server/store/redis/redis_replica.h"
#include "server/store/sample/piece_change.h"
#include "server/store/store_errors.h"

namespace routing_replay::server {
namespace {

// An append holds a thread of its server's, of which there are not many, and most come without a deadline.
constexpr std::chrono::seconds kRestartWait{2};

absl::Status TooMuchChange(const SampleName& name) {
  return MakeError(absl::StatusCode::kUnavailable,
                   absl::StrCat("sample \"", name.sample, "\" is changed by others all the time"),
                   {.sample = name.sample});
}

Block CopyOf(const Block& block) {
  Block copy{.rows = block.rows, .codec = block.codec, .plane_crc32c = block.plane_crc32c};
  copy.bytes = Buffer(block.bytes.size());
  std::copy_n(block.bytes.data(), block.bytes.size(), copy.bytes.data());
  return copy;
}

// A whole window is merged with nothing, so that it can be had back.
bool StaysAsItIs(const RunInfo& run, const Block& block) {
  return block.rows.size() == run.options.block_rows && block.codec == Codec::kRaw && run.options.codec == Codec::kRaw;
}

// The append may have to be tried again: what may be merged is copied.
absl::Status TakeBlocks(const RunInfo& run, std::vector<Block>& from, RowRange rows, std::vector<Block>& blocks) {
  for (Block& block : from) {
    const BlockRows part{block.view(), Intersect(block.rows, rows)};
    if (part.rows.empty()) continue;
    if (part.rows == block.rows) {
      blocks.push_back(StaysAsItIs(run, block) ? std::move(block) : CopyOf(block));
      continue;
    }
    absl::StatusOr<Block> cut = Merge(*run.geometry, {&part, 1}, block.codec);
    if (!cut.ok()) return cut.status();
    blocks.push_back(*std::move(cut));
  }
  return absl::OkStatus();
}

void PutBack(Block block, std::vector<Block>& blocks) {
  const auto place = std::find_if(blocks.begin(), blocks.end(),
                                  [&](const Block& taken) { return taken.bytes.empty() && taken.rows == block.rows; });
  if (place != blocks.end()) *place = std::move(block);
}

// Gives an append that was not stored its blocks back.
void PutBack(absl::Span<const std::shared_ptr<StoredBlock>> added, std::vector<Block>& blocks) {
  for (const std::shared_ptr<StoredBlock>& stored : added) {
    if (auto block = static_cast<RedisBlock&>(*stored).TakeBack()) PutBack(*std::move(block), blocks);
  }
}

// The server has refused it, and would again as long as nothing changes.
bool IsRefusal(const absl::Status& status) {
  return !absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status) && !absl::IsNotFound(status);
}

// The rows that a child opens with, as blocks of its own: those of another sample may lie on another server.
absl::Status CopyRows(const RunInfo& run, const RowPieces& pieces, std::vector<Block>& blocks) {
  for (const RowPiece& piece : pieces.all()) {
    const absl::StatusOr<LoadedBlock> loaded = Load(piece.stored);
    if (!loaded.ok()) return loaded.status();
    const BlockRows rows{loaded->view, piece.rows};
    absl::StatusOr<Block> copy = Merge(*run.geometry, {&rows, 1}, run.options.codec);
    if (!copy.ok()) return copy.status();
    blocks.push_back(*std::move(copy));
  }
  return absl::OkStatus();
}

// The pieces after a change: those before it, and what it made.
RowPieces PiecesAfter(const RowPieces& pieces, const PieceChange& change) {
  RowPieces after;
  for (size_t i = 0; i < change.first_piece(); ++i) after.Append(pieces[i]);
  for (const RowPiece& piece : change.tail()) after.Append(piece);
  return after;
}

}  // namespace

RedisSample::~RedisSample() {
  if (changed_) run_->watches->Notify(name_.handle, name_.producer, name_.sample);
}

absl::StatusOr<RedisFound> RedisSample::Find() {
  const std::string key = ManifestKey();
  const Clock::Time deadline = context_.Deadline();
  do {
    absl::StatusOr<std::vector<RedisFound>> found = LookAt(context_, *run_, {&name_, 1});
    if (!found.ok()) return found.status();
    RedisFound& one = found->front();
    if (!one.exists()) {
      const absl::StatusOr<std::optional<absl::Status>> gone = ReportGone(one);
      if (!gone.ok()) return gone.status();
      if (!*gone) continue;
      if (!(*gone)->ok()) return **gone;
      return std::move(one);
    }
    if (name_.sample.empty()) name_.sample = one.stamp.sample;
    if (name_.sample != one.stamp.sample) return HandleCollisionError(name_.sample, one.stamp.sample);
    if (!one.content.ok()) return one.content.status();
    const std::optional<AcknowledgedSample> acknowledged = context_.known.Acknowledged(key);
    if (!acknowledged || !acknowledged->IsMoreThan(one.stamp.birth, **one.content)) return std::move(one);
    const absl::StatusOr<std::optional<absl::Status>> loss = ReportLoss(one, *acknowledged);
    if (!loss.ok()) return loss.status();
    if (*loss) return **loss;
  } while (Clock::Real().Now() < deadline);
  return TooMuchChange(name_);
}

absl::StatusOr<RedisFound> RedisSample::FindExisting() {
  absl::StatusOr<RedisFound> found = Find();
  const bool other = GetErrorDetail(found.status()).value_or(ErrorDetail{}).reason == Reason::kHandleCollision;
  if (!found.ok() && !other) return found.status();
  if (!other && found->exists()) return found;
  return NoSampleError(name_.sample.empty() ? absl::StrCat("handle ", name_.handle) : name_.sample);
}

absl::StatusOr<std::optional<absl::Status>> RedisSample::ReportLoss(const RedisFound& found,
                                                                    const AcknowledgedSample& acknowledged) {
  const SampleContent& content = **found.content;
  context_.trouble.NameLoss(run_->info.run, name_.sample, content.rows(), acknowledged.rows);
  SampleContent next = RemainingContent(content, acknowledged.rows, context_.content_ids);
  next.revision = std::max(next.revision, acknowledged.revision + 1);
  const auto now = Commit(context_, *run_, ChangeOfHead(*run_, name_, found, std::move(next)));
  if (!now.ok()) return now.status();
  if (!*now) return std::optional<absl::Status>();
  context_.trouble.CountLoss();
  context_.trouble.TellLosses();
  changed_ = true;
  const bool same_revision = content.revision == acknowledged.revision;
  ErrorDetail detail{.reason = Reason::kNotCommitted, .sample = name_.sample};
  detail.committed_rows = content.rows();
  detail.revision = (*(*now)->content)->revision;
  if (same_revision && content.rows() < acknowledged.rows) {
    detail.missing_rows = {{content.rows(), acknowledged.rows}};
  }
  return std::optional(
      MakeError(absl::StatusCode::kDataLoss,
                absl::StrCat("Redis came back with ", content.rows(), " rows at revision ", content.revision, " of ",
                             name_.sample, ", ", acknowledged.rows, " at revision ", acknowledged.revision,
                             " were acknowledged; what is left is revision ", *detail.revision),
                detail));
}

absl::StatusOr<std::optional<absl::Status>> RedisSample::ReportGone(const RedisFound& found) {
  if (name_.sample.empty()) return std::optional(absl::OkStatus());
  const auto left = run_->index.LeftOf({&name_, 1});
  if (!left.ok()) return left.status();
  if (!left->front()) return std::optional(absl::OkStatus());
  const RedisEntry& entry = *left->front();
  context_.trouble.NameLoss(run_->info.run, name_.sample, 0, entry.rows);
  SampleContent nothing{TokenChecks(run_->info.options.block_rows)};
  nothing.revision = entry.revision;
  nothing.group = *entry.group;
  RedisChange change{name_, found, RemainingContent(nothing, entry.rows, context_.content_ids)};
  change.lost_version = entry.version;
  const auto now = Commit(context_, *run_, std::move(change));
  if (!now.ok()) return now.status();
  if (!*now) return std::optional<absl::Status>();
  context_.trouble.CountLoss();
  context_.trouble.TellLosses();
  changed_ = true;
  ErrorDetail detail{.reason = Reason::kNotCommitted, .sample = name_.sample, .committed_rows = 0};
  detail.revision = (*(*now)->content)->revision;
  if (entry.rows > 0) detail.missing_rows = {{0, entry.rows}};
  return std::optional(MakeError(
      absl::StatusCode::kDataLoss,
      absl::StrCat("Redis has lost ", name_.sample, ", of which ", entry.rows, " rows at revision ", entry.revision,
                   " were acknowledged; what is left, nothing, is revision ", *detail.revision),
      detail));
}

absl::StatusOr<SampleContent> RedisSample::Prefix(const PrefixReference& prefix) {
  const absl::StatusOr<RedisFound> found = FindExisting();
  if (!found.ok()) return found.status();
  return TakePrefix(**found->content, prefix);
}

std::optional<RedisFound> RedisSample::Guess(const AppendHeader& header) {
  if (header.prefix) return std::nullopt;
  const std::string key = ManifestKey();
  const std::optional<RedisManifest> last = context_.known.Last(key);
  const std::optional<AcknowledgedSample> acknowledged = context_.known.Acknowledged(key);
  if (!last) {  // Whatever begins is most likely new.
    return acknowledged || header.rows.begin > 0 ? std::nullopt : std::optional(RedisFound{.guessed = true});
  }
  if (last->stamp.sample != name_.sample) return std::nullopt;
  if (acknowledged && acknowledged->IsMoreThan(last->stamp.birth, *last->content)) return std::nullopt;
  return RedisFound{last->stamp, last->content, /*guessed=*/true};
}

absl::StatusOr<AppendAck> RedisSample::Append(AppendCommand& command, RedisSample* parent) {
  MutexLock lock(context_.WriterLock(name_.handle));
  if (const std::optional<RedisFound> guess = Guess(command.header)) {
    const absl::StatusOr<std::optional<AppendAck>> ack = TryAppend(command, parent, *guess);
    if (!ack.ok()) return WithSample(ack.status(), name_.sample);
    if (*ack) return **ack;
  }
  for (const Clock::Time deadline = context_.Deadline();;) {
    const absl::StatusOr<RedisFound> found = Find();
    if (!found.ok()) return WithSample(found.status(), name_.sample);
    absl::StatusOr<std::optional<AppendAck>> ack = TryAppend(command, parent, *found);
    if (!ack.ok()) return WithContent(ack.status(), name_.sample, found->exists() ? found->content->get() : nullptr);
    if (*ack) return **std::move(ack);
    if (Clock::Real().Now() >= deadline) return TooMuchChange(name_);
  }
}

absl::StatusOr<std::optional<AppendAck>> RedisSample::TryAppend(AppendCommand& command, RedisSample* parent,
                                                                const RedisFound& found) {
  // Nobody is refused on a guess.
  const auto refuse = [&](const absl::Status& status) -> absl::StatusOr<std::optional<AppendAck>> {
    if (found.guessed) return std::nullopt;
    return status;
  };
  const AppendHeader& header = command.header;
  const SampleContent* before = found.exists() ? found.content->get() : nullptr;
  const absl::StatusOr<LifeStep> step = CheckLife(before, header);
  if (!step.ok()) return refuse(step.status());
  std::optional<SampleContent> life;
  if (*step != LifeStep::kContinue) {
    std::optional<absl::StatusOr<SampleContent>> prefix;
    if (parent != nullptr) prefix = parent->Prefix(*header.prefix);
    absl::StatusOr<SampleContent> made = NewLife(*step, before, header, run_->info.options.block_rows, prefix);
    if (!made.ok()) return refuse(made.status());
    life = *std::move(made);
  }
  assert(life.has_value() || before != nullptr);  // Only what is there continues.
  const SampleContent& content = life ? *life : *before;
  const absl::StatusOr<AppendPlan> plan = PlanAppend(run_->info, content, header, command.blocks);
  if (!plan.ok()) return refuse(plan.status());
  const bool other_group = header.group && *header.group != content.group;
  if (!life && KeepsContent(*plan) && !other_group) {
    if (found.guessed) return std::nullopt;
    RedisFound used = found;
    Touch(context_, *run_, name_, used);
    return AckOf(name_.sample, content, *plan);
  }
  absl::StatusOr<std::optional<RedisFound>> now = StoreAppend(command, found, content, life.has_value(), *plan);
  if (!now.ok()) return now.status();
  if (!*now) return std::optional<AppendAck>();
  changed_ = changed_ || life || !KeepsContent(*plan);
  Touch(context_, *run_, name_, **now);
  return AckOf(name_.sample, **(*now)->content, *plan);
}

absl::StatusOr<std::optional<RedisFound>> RedisSample::StoreAppend(AppendCommand& command, const RedisFound& found,
                                                                   const SampleContent& content, bool new_life,
                                                                   const AppendPlan& plan) {
  absl::StatusOr<RedisChange> change = PlanChange(found, content, new_life, command, plan);
  if (!change.ok()) {
    if (found.guessed) return std::nullopt;
    return change.status();
  }
  const std::vector<std::shared_ptr<StoredBlock>> added = change->added;
  absl::StatusOr<std::optional<RedisFound>> now = Commit(context_, *run_, *std::move(change));
  if (!now.ok() || !*now) PutBack(added, command.blocks);
  if (!now.ok() && found.guessed && IsRefusal(now.status())) return std::nullopt;
  return now;
}

absl::StatusOr<RedisChange> RedisSample::PlanChange(const RedisFound& found, const SampleContent& content,
                                                    bool new_life, AppendCommand& command, const AppendPlan& plan) {
  const int32_t block_rows = run_->info.options.block_rows;
  SampleContent next = NextContent(content, new_life, command.header, plan, context_.content_ids);
  if (!new_life && KeepsContent(plan)) {  // Another group, and no more.
    return ChangeOfHead(*run_, name_, found, std::move(next));
  }
  std::vector<Block> blocks;
  const RowPieces none;
  if (new_life) {
    if (absl::Status status = CopyRows(run_->info, content.pieces, blocks); !status.ok()) return status;
  }
  absl::Status taken = TakeBlocks(run_->info, command.blocks, plan.added, blocks);
  if (!taken.ok()) return taken;
  RedisHome home(PlaceOf(context_, *run_, name_), context_.block_ids);
  const RowRange committed{new_life ? 0 : plan.added.begin, plan.added.end};
  const RowPieces& pieces = new_life ? none : content.pieces;
  PieceChange change(run_->info, home, pieces, std::move(blocks), committed, plan.seals);
  if (absl::Status status = change.Merge(); !status.ok()) {
    PutBack(change.added(), command.blocks);
    for (Block& block : change.TakeRest()) PutBack(std::move(block), command.blocks);
    return status;
  }
  next.pieces = PiecesAfter(pieces, change);
  return RedisChange{
      name_, found, std::move(next), committed.begin / block_rows, {change.added().begin(), change.added().end()}};
}

absl::StatusOr<RedisChange> RedisSample::SealChange(const RedisFound& found, int64_t num_tokens) {
  const SampleContent& content = **found.content;
  RedisHome home(PlaceOf(context_, *run_, name_), context_.block_ids);
  PieceChange change(run_->info, home, content.pieces, {}, {content.rows(), content.rows()}, true);
  if (absl::Status status = change.Merge(); !status.ok()) return status;
  SampleContent next = SealedContent(content, num_tokens);
  next.pieces = PiecesAfter(content.pieces, change);
  return RedisChange{name_,
                     found,
                     std::move(next),
                     content.rows() / run_->info.options.block_rows,
                     {change.added().begin(), change.added().end()}};
}

RedisChange RedisSample::TruncateChange(const RedisFound& found, int64_t rows) {
  const SampleContent& content = **found.content;
  SampleContent next = TruncatedContent(content, rows, context_.content_ids);
  for (RowPiece& piece : content.pieces.Find({0, rows})) next.pieces.Append(std::move(piece));
  return {name_, found, std::move(next), rows / run_->info.options.block_rows, {}, /*once=*/true};
}

// `make_change`: the change of what was found, nothing if none is needed, or an error.
template <typename MakeChange>
absl::StatusOr<SampleState> RedisSample::Change(const MakeChange& make_change) {
  MutexLock lock(context_.WriterLock(name_.handle));
  for (const Clock::Time deadline = context_.Deadline();;) {
    absl::StatusOr<RedisFound> found = FindExisting();
    if (!found.ok()) return found.status();
    absl::StatusOr<std::optional<RedisChange>> change = make_change(*found);
    std::optional<RedisFound> now;
    absl::Status status = change.status();
    if (change.ok() && *change) {
      absl::StatusOr<std::optional<RedisFound>> committed = Commit(context_, *run_, **std::move(change));
      status = committed.status();
      if (committed.ok()) now = *std::move(committed);
      changed_ = changed_ || now.has_value();
    } else if (change.ok()) {
      now = *found;
    }
    if (!status.ok()) return WithContent(status, name_.sample, found->content->get());
    if (now) {
      Touch(context_, *run_, name_, *now);
      return StateOf(context_, name_, *now);
    }
    if (Clock::Real().Now() >= deadline) return TooMuchChange(name_);
  }
}

absl::StatusOr<SampleState> RedisSample::Seal(int64_t num_tokens, int64_t revision) {
  return Change([&](const RedisFound& found) -> absl::StatusOr<std::optional<RedisChange>> {
    const SampleContent& content = **found.content;
    if (absl::Status status = CheckSeal(content, num_tokens, revision); !status.ok()) return status;
    if (content.sealed()) return std::optional<RedisChange>();
    return SealChange(found, num_tokens);
  });
}

// Holds no lock: others may change the sample while this waits.
absl::Status RedisSample::KeepRevision(int64_t revision, Clock::Time deadline) {
  const std::string key = ManifestKey();
  const AcknowledgedSample acknowledged = context_.known.Acknowledged(key).value_or(AcknowledgedSample{});
  if (acknowledged.kept_revision >= revision) return absl::OkStatus();
  const absl::Status kept = [&] {
    const CallDeadline of_waiting(deadline);
    return AwaitReplica(context_, *run_, key);
  }();
  if (!kept.ok()) {
    return MakeError(kept.code(),
                     absl::StrCat("sample \"", name_.sample, "\" has a new revision, but no replica of Redis is known ",
                                  "to have it, so a failover may undo it; look which one it has before it is changed ",
                                  "again: ", kept.message()),
                     {.sample = name_.sample});
  }
  // The master may have failed before the replica was asked.
  if (const auto found = FindExisting(); !found.ok()) return found.status();
  context_.known.NoteKept(key, acknowledged.birth, revision);
  return absl::OkStatus();
}

absl::Status RedisSample::KeepRestart(int64_t revision) {
  return KeepRevision(revision, Clock::Real().Now() + kRestartWait);
}

absl::StatusOr<SampleState> RedisSample::Truncate(int64_t rows, std::optional<int64_t> expected_revision) {
  absl::StatusOr<SampleState> state = TruncateHere(rows, expected_revision);
  if (!state.ok()) return state;
  if (absl::Status kept = KeepRevision(state->revision, Clock::Time::max()); !kept.ok()) return kept;
  return state;
}

absl::StatusOr<SampleState> RedisSample::TruncateHere(int64_t rows, std::optional<int64_t> expected_revision) {
  return Change([&](const RedisFound& found) -> absl::StatusOr<std::optional<RedisChange>> {
    if (absl::Status status = CheckTruncate(**found.content, rows, expected_revision); !status.ok()) return status;
    return TruncateChange(found, rows);
  });
}

absl::StatusOr<SampleSnapshot> RedisSample::Snapshot(absl::Span<const RowRange> rows, const AdmitSnapshot& admit) {
  absl::StatusOr<RedisFound> found = FindExisting();
  if (!found.ok()) return found.status();
  if (admit) {
    const SampleContent& content = **found->content;
    size_t count = 0;
    for (RowRange range : rows) count += content.pieces.Count(range);
    absl::Status admitted = admit(SnapshotBytes(content, count));
    if (!admitted.ok()) return admitted;
  }
  Touch(context_, *run_, name_, *found);
  std::vector<RowPiece> pieces;
  for (RowRange range : rows) {
    for (RowPiece& piece : (*found->content)->pieces.Find(range)) pieces.push_back(std::move(piece));
  }
  return SampleSnapshot{.state = StateOf(context_, name_, *found),
                        .rows = ReadAhead(std::move(pieces)),
                        .tokens = (*found->content)->tokens};
}

// An entry is put after its sample has changed: it never knows of more, unless Redis has lost it.
absl::Status RedisSample::CompareWith(const RedisEntry& entry) {
  MutexLock lock(context_.WriterLock(name_.handle));
  for (const Clock::Time deadline = context_.Deadline();;) {
    const absl::StatusOr<RedisFound> found = Find();
    if (!found.ok()) return found.status();
    if (!found->exists() || found->stamp.version >= entry.version) return absl::OkStatus();
    const AcknowledgedSample noted{found->stamp.birth, entry.revision, entry.rows, entry.sealed};
    if (!noted.IsMoreThan(found->stamp.birth, **found->content)) return absl::OkStatus();
    const absl::StatusOr<std::optional<absl::Status>> loss = ReportLoss(*found, noted);
    if (!loss.ok()) return loss.status();
    if (*loss) return **loss;
    if (Clock::Real().Now() >= deadline) return TooMuchChange(name_);
  }
}

absl::StatusOr<SampleState> RedisSample::Stat() {
  const absl::StatusOr<RedisFound> found = FindExisting();
  if (!found.ok()) return found.status();
  return StateOf(context_, name_, *found);
}

std::optional<SampleState> RedisSample::StateIn(const RedisFound& found) const {
  if (!found.exists() || !found.content.ok()) return std::nullopt;
  if (!name_.sample.empty() && name_.sample != found.stamp.sample) return std::nullopt;
  const std::optional<AcknowledgedSample> acknowledged = context_.known.Acknowledged(ManifestKey());
  if (acknowledged && acknowledged->IsMoreThan(found.stamp.birth, **found.content)) return std::nullopt;
  return StateOf(context_, {found.stamp.sample, name_.handle, name_.producer}, found);
}

}  // namespace routing_replay::server
