#include "server/store/redis/redis_sample.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/block/block.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/row_pieces.h"
#include "server/store/store_rules.h"

namespace routing_replay::server {
namespace {

// Time limit of WAIT and WAITAOF. It is short because a waiting append occupies one of few worker threads.
constexpr std::chrono::seconds kSyncedWait{2};

// Changes a sample in one step: compares its version, checks that the new chunks exist, then writes. KEYS: manifest,
// the other producer's manifest, ids, groups, uses, sums; the new chunks; the chunks that are not referenced any more.
// ARGV: expected version (empty: the sample does not exist), new version, sample id, now (ms; empty: do not record this
// use, the last one was recent), group (empty: unchanged), number of new chunks, how long replaced ones stay (ms); by
// how much sealed, rows and bytes grow; number of fields to delete, their names, then pairs of field and value. Returns
// 1; 0 if the sample has another version or a new chunk is missing; or the id of another sample that the other producer
// has with this handle. A second execution right after the first also returns 1.
constexpr char kCommit[] = R"(
local call = redis.call
local version = call('HGET', KEYS[1], 'v') or ''
if version == ARGV[2] then return 1 end
if version ~= ARGV[1] then return 0 end
local new = version == ''
if new then
  local other = call('HGET', KEYS[2], 'id')
  if other and other ~= ARGV[3] then return other end
end
local chunks = 6 + ARGV[6]
for i = 7, chunks do
  if call('PERSIST', KEYS[i]) == 0 then return 0 end
end
if new then
  call('ZADD', KEYS[3], 0, ARGV[3])
  call('HINCRBY', KEYS[6], 'samples', 1)
end
if ARGV[5] ~= '' then call('ZADD', KEYS[4], ARGV[5], ARGV[3]) end
if ARGV[4] ~= '' then call('ZADD', KEYS[5], ARGV[4], ARGV[3]) end
if ARGV[8] ~= '0' then call('HINCRBY', KEYS[6], 'sealed', ARGV[8]) end
if ARGV[9] ~= '0' then call('HINCRBY', KEYS[6], 'rows', ARGV[9]) end
if ARGV[10] ~= '0' then call('HINCRBY', KEYS[6], 'bytes', ARGV[10]) end
local first = 12 + ARGV[11]
for i = 12, first - 1 do call('HDEL', KEYS[1], ARGV[i]) end
for i = first, #ARGV, 200 do call('HSET', KEYS[1], unpack(ARGV, i, math.min(i + 199, #ARGV))) end
for i = chunks + 1, #KEYS do call('PEXPIRE', KEYS[i], ARGV[7]) end
return 1
)";

// The two scripts below run even when Redis's memory is full (allow-oom): kTouch prevents expiry, kRemove frees memory.

// Records a use of a sample. KEYS: manifest, uses. ARGV: sample id, now (ms).
constexpr char kTouch[] = R"(#!lua flags=allow-oom
if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'u', ARGV[2])
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
return 1
)";

// Removes a sample. KEYS: manifest, ids, groups, uses, sums, its chunks. ARGV: expected version, expected last use (ms;
// empty: any), sample id, how long the chunks stay (ms). Returns 1, or 0 if version or last use is another one.
constexpr char kRemove[] = R"(#!lua flags=allow-oom
local at = redis.call('HMGET', KEYS[1], 'v', 'u', 'n')
if at[1] ~= ARGV[1] or (ARGV[2] ~= '' and at[2] ~= ARGV[2]) then return 0 end
redis.call('UNLINK', KEYS[1])
if redis.call('ZREM', KEYS[2], ARGV[3]) == 1 then redis.call('HINCRBY', KEYS[5], 'samples', -1) end
for i = 3, 4 do redis.call('ZREM', KEYS[i], ARGV[3]) end
local rows, bytes, sealed = string.match(at[3] or '', '^(%d+) (%d+) (%d)$')
for field, number in pairs({rows = rows, bytes = bytes, sealed = sealed}) do
  if number ~= '0' then redis.call('HINCRBY', KEYS[5], field, '-' .. number) end
end
for i = 6, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[4]) end
return 1
)";

absl::Status TooMuchChange(const SampleName& name) {
  return MakeError(
      absl::StatusCode::kUnavailable,
      absl::StrCat("sample \"", name.sample, "\" is being changed by other clients too often; try again later"),
      {.sample = name.sample});
}

// Copies the parts of the blocks inside `rows`. The originals are kept, because the append may have to be retried.
absl::Status CopyBlocks(const RunInfo& run, absl::Span<const Block> from, RowRange rows, std::vector<Block>& blocks) {
  for (const Block& block : from) {
    const BlockRows part{block.view(), Intersect(block.rows, rows)};
    if (part.rows.empty()) continue;
    if (part.rows == block.rows) {
      Block& copy = blocks.emplace_back(Block{.rows = block.rows, .codec = block.codec});
      copy.plane_crc32c = block.plane_crc32c;
      copy.bytes = Buffer(block.bytes.size());
      std::copy_n(block.bytes.data(), block.bytes.size(), copy.bytes.data());
      continue;
    }
    RR_ASSIGN_OR_RETURN(Block cut, Merge(*run.geometry, {&part, 1}, block.codec));
    blocks.push_back(std::move(cut));
  }
  return absl::OkStatus();
}

// Copies the rows that a child starts with into new blocks, because the parent's blocks may be on another master.
absl::Status CopyRows(const RunInfo& run, const RowPieces& pieces, std::vector<Block>& blocks) {
  for (const RowPiece& piece : pieces.all()) {
    RR_ASSIGN_OR_RETURN(const LoadedBlock loaded, Load(piece.stored));
    const BlockRows rows{loaded.view, piece.rows};
    RR_ASSIGN_OR_RETURN(Block copy, Merge(*run.geometry, {&rows, 1}, run.options.codec));
    blocks.push_back(std::move(copy));
  }
  return absl::OkStatus();
}

// The keys of the chunks that a change replaces. These expire some time later, because readers may still use them.
std::vector<std::string> ReplacedChunks(const SampleContent* before, const SampleContent& next, int64_t first_row) {
  if (before == nullptr) return {};
  std::set<uint64_t> kept;
  const absl::Span<const RowPiece> now = next.pieces.all(), was = before->pieces.all();
  for (const RowPiece& piece : now.subspan(FirstEndingAfter(now, first_row))) kept.insert(BlockOf(piece).id());
  return ChunkKeys(was.subspan(FirstEndingAfter(was, first_row)), std::move(kept));
}

// Adds the end of kCommit's ARGV, from the number of fields to delete on, for the head and the windows of a change.
void AddFields(const SampleContent* before, const SampleContent& next, int64_t first_window, int32_t block_rows,
               RedisCommand& command) {
  const int64_t windows = WindowCount(next.rows(), block_rows);
  const int64_t windows_before = before == nullptr ? 0 : WindowCount(before->rows(), block_rows);
  const auto id_of = [](const StoredBlock& block) { return static_cast<const RedisBlock&>(block).id(); };
  std::vector<std::string> removed;
  std::vector<std::pair<std::string, std::string>> written;
  for (int64_t window = first_window; window < std::max(windows, windows_before); ++window) {
    std::string record;
    if (window < windows) record = EncodeWindow(next, next.pieces.all(), block_rows, window, id_of);
    const std::string field = absl::StrCat("w", window);
    if (!record.empty()) {
      written.push_back({field, std::move(record)});
    } else if (window < windows_before) {
      removed.push_back(field);
    }
  }
  command.Add(static_cast<int64_t>(removed.size()));
  for (const std::string& field : removed) command.Add(field);
  command.Add("head").Add(EncodeHead(next));
  for (const auto& [field, record] : written) command.Add(field).Add(record);
}

}  // namespace

SampleState StateOf(const RedisContext& context, const SampleName& name, const RedisManifest& manifest) {
  SampleState state = StateOf(name, **manifest.content);
  state.stored_bytes = manifest.stored_bytes();
  state.idle_ms = std::max<int64_t>(0, context.time.NowMs() - manifest.last_used_ms);
  return state;
}

absl::Status RemoveSamples(const std::shared_ptr<RedisContext>& context, RedisRun& run, std::vector<SampleName> names,
                           const std::function<bool(const RedisManifest&)>& ends, bool unused, ReleaseResult& result) {
  while (!names.empty()) {
    const size_t count = std::min(names.size(), kRedisBatch);
    std::vector<SampleName> batch(names.end() - static_cast<ptrdiff_t>(count), names.end());
    names.resize(names.size() - count);
    RR_ASSIGN_OR_RETURN(const std::vector<RedisManifest> found, LookAt(context, run, batch));
    std::vector<RedisRequest> requests;
    std::vector<size_t> asked;
    for (size_t i = 0; i < batch.size(); ++i) {
      const RedisManifest& one = found[i];
      if (!one.exists() || (!batch[i].sample.empty() && batch[i].sample != one.sample)) continue;
      if (ends != nullptr && !ends(one)) continue;
      batch[i].sample = one.sample;
      const SampleKeys of(context, run, batch[i]);
      const int p = static_cast<int>(of.producer);
      std::vector<std::string> keys = {of.key, absl::StrCat(of.part, "i", p), absl::StrCat(of.part, "g", p),
                                       absl::StrCat(of.part, "u", p), absl::StrCat(of.part, "n")};
      if (one.whole()) {  // The chunks of a damaged sample are not known and stay.
        for (std::string& key : ChunkKeys((*one.content)->pieces.all())) keys.push_back(std::move(key));
      }
      requests.push_back(RedisContext::Of(kRemove, keys));
      requests.back()
          .command.Add(one.version)
          .Add(unused ? absl::StrCat(one.last_used_ms) : "")
          .Add(batch[i].sample)
          .Add(kReaderGrace.count());
      asked.push_back(i);
    }
    const std::vector<RedisResult> answers = context->Execute(requests);
    absl::Status status;
    for (size_t i = 0; i < asked.size(); ++i) {
      const SampleName& name = batch[asked[i]];
      const RedisManifest& one = found[asked[i]];
      if (!answers[i].reply.ok()) {
        status = answers[i].reply.status();
      } else if (answers[i].reply->integer == 0) {
        // With `unused` it stays: it was used or changed meanwhile, so it is not idle any more.
        if (!unused) names.push_back(name);
      } else {
        ++result.samples;
        result.bytes += one.whole() ? one.stored_bytes() : 0;
        context->changed(run, name, requests[i].key, "");
      }
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

RedisSample::RedisSample(std::shared_ptr<RedisContext> context, std::shared_ptr<RedisRun> run, SampleName name)
    : context_(std::move(context)),
      run_(std::move(run)),
      name_(std::move(name)),
      keys_(std::make_shared<const SampleKeys>(context_, *run_, name_)) {}

RedisSample::~RedisSample() {
  if (changed_) context_->changed(*run_, name_, keys_->key, version_);
}

absl::StatusOr<RedisManifest> RedisSample::Find() {
  RR_ASSIGN_OR_RETURN(std::vector<RedisManifest> found, LookAt(context_, *run_, {&name_, 1}));
  RedisManifest& one = found.front();
  if (!one.exists()) return std::move(one);
  if (!one.sample.empty() && name_.sample != one.sample) return HandleCollisionError(name_.sample, one.sample);
  if (!one.content.ok()) return one.content.status();
  return std::move(one);
}

absl::StatusOr<RedisManifest> RedisSample::Check(RedisManifest found) {
  const bool other = !name_.sample.empty() && !found.sample.empty() && name_.sample != found.sample;
  if (!found.exists() || other) {
    return NoSampleError(name_.sample.empty() ? absl::StrCat("handle ", name_.handle) : name_.sample);
  }
  if (name_.sample.empty()) name_.sample = found.sample;
  if (!found.content.ok()) return found.content.status();
  return found;
}

absl::StatusOr<RedisManifest> RedisSample::FindExisting() {
  RR_ASSIGN_OR_RETURN(std::vector<RedisManifest> found, LookAt(context_, *run_, {&name_, 1}));
  return Check(std::move(found.front()));
}

std::optional<RedisManifest> RedisSample::Guess(const AppendHeader& header) {
  if (header.prefix) return std::nullopt;
  std::optional<RedisManifest> guess = context_->cache.Find(keys_->key);
  if (!guess && header.rows.begin == 0) guess.emplace();
  if (guess && guess->exists() && guess->sample != name_.sample) return std::nullopt;
  if (guess) guess->guessed = true;
  return guess;
}

absl::StatusOr<AppendAck> RedisSample::Append(const AppendCommand& command, RedisSample* parent) {
  MutexLock lock(context_->WriterLock(name_.handle));
  if (const std::optional<RedisManifest> guess = Guess(command.header)) {
    absl::StatusOr<std::optional<AppendAck>> ack = TryAppend(command, parent, *guess);
    if (ack.ok() && *ack) return **std::move(ack);
    // If the run is gone or Redis does not answer, the append fails. Any other error may come from a guess that is
    // stale: the loop below reads the manifest and tries again.
    const absl::Status& why = ack.status();
    if (absl::IsNotFound(why) || absl::IsUnavailable(why) || absl::IsDeadlineExceeded(why)) {
      return WithSample(why, name_.sample);
    }
  }
  for (const Clock::Time deadline = context_->Deadline();;) {
    const absl::StatusOr<RedisManifest> found = Find();
    if (!found.ok()) return WithSample(found.status(), name_.sample);
    absl::StatusOr<std::optional<AppendAck>> ack = TryAppend(command, parent, *found);
    if (!ack.ok()) return WithContent(ack.status(), name_.sample, found->exists() ? found->content->get() : nullptr);
    if (*ack) return **std::move(ack);
    if (Clock::Real().Now() >= deadline) return TooMuchChange(name_);
  }
}

absl::StatusOr<std::optional<AppendAck>> RedisSample::TryAppend(const AppendCommand& command, RedisSample* parent,
                                                                const RedisManifest& found) {
  const AppendHeader& header = command.header;
  const SampleContent* before = found.exists() ? found.content->get() : nullptr;
  RR_ASSIGN_OR_RETURN(const IncarnationStep step, CheckIncarnation(before, header));
  std::optional<SampleContent> incarnation;
  if (step != IncarnationStep::kContinue) {
    std::optional<absl::StatusOr<SampleContent>> prefix;
    if (parent != nullptr) {
      const absl::StatusOr<RedisManifest> from = parent->FindExisting();
      prefix = from.ok() ? TakePrefix(**from->content, *header.prefix) : from.status();
    }
    RR_ASSIGN_OR_RETURN(incarnation, NewIncarnation(step, before, header, run_->info.options.block_rows, prefix));
  }
  const SampleContent& content = incarnation ? *incarnation : *before;
  RR_ASSIGN_OR_RETURN(const AppendPlan plan, PlanAppend(run_->info, content, header, command.blocks));
  RedisManifest now = found;
  if (incarnation || !KeepsContent(plan) || (header.group && *header.group != content.group)) {
    RR_ASSIGN_OR_RETURN(Change change, PlanChange(content, incarnation.has_value(), command, plan));
    Committed committed = Commit(found, std::move(change));
    if (!committed.ok()) return committed.status();
    if (!*committed) return std::nullopt;
    now = **std::move(committed);
  } else if (found.guessed) {
    return std::nullopt;
  }
  version_ = now.version;
  Touch(now);
  return AckOf(name_.sample, **now.content, plan);
}

absl::StatusOr<RedisSample::Change> RedisSample::PlanChange(const SampleContent& content, bool new_incarnation,
                                                            const AppendCommand& command, const AppendPlan& plan) {
  SampleContent next = NextContent(content, new_incarnation, command.header, plan, context_->ids);
  if (!new_incarnation && KeepsContent(plan)) {  // Only the group changes.
    for (const RowPiece& piece : content.pieces.all()) next.pieces.Append(piece);
    return Change{std::move(next), WindowCount(content.rows(), run_->info.options.block_rows)};
  }
  std::vector<Block> blocks;
  const RowPieces none;
  if (new_incarnation) {
    RR_RETURN_IF_ERROR(CopyRows(run_->info, content.pieces, blocks));
  }
  RR_RETURN_IF_ERROR(CopyBlocks(run_->info, command.blocks, plan.added, blocks));
  const RowRange committed{new_incarnation ? 0 : plan.added.begin, plan.added.end};
  return Merged(std::move(next), new_incarnation ? none : content.pieces, std::move(blocks), committed, plan.seals);
}

absl::StatusOr<RedisSample::Change> RedisSample::Merged(SampleContent next, const RowPieces& pieces,
                                                        std::vector<Block> blocks, RowRange committed, bool sealed) {
  RedisHome home(keys_);
  PieceChange change(run_->info, home, pieces, std::move(blocks), committed, sealed);
  RR_RETURN_IF_ERROR(change.Merge());
  for (size_t i = 0; i < change.first_piece(); ++i) next.pieces.Append(pieces[i]);
  for (const RowPiece& piece : change.tail()) next.pieces.Append(piece);
  return Change{
      std::move(next), committed.begin / run_->info.options.block_rows, {change.added().begin(), change.added().end()}};
}

template <typename MakeChange>
absl::StatusOr<SampleState> RedisSample::Make(const MakeChange& make_change) {
  MutexLock lock(context_->WriterLock(name_.handle));
  for (const Clock::Time deadline = context_->Deadline();;) {
    RR_ASSIGN_OR_RETURN(RedisManifest now, FindExisting());
    const std::shared_ptr<const SampleContent> before = *now.content;
    absl::StatusOr<std::optional<Change>> change = make_change(*before);
    if (!change.ok()) return WithContent(change.status(), name_.sample, before.get());
    const Committed committed = *change ? Commit(now, **std::move(change)) : Committed(std::move(now));
    if (!committed.ok()) return WithContent(committed.status(), name_.sample, before.get());
    if (*committed) {
      RedisManifest made = **committed;
      version_ = made.version;
      Touch(made);
      return StateOf(*context_, name_, made);
    }
    if (Clock::Real().Now() >= deadline) return TooMuchChange(name_);
  }
}

absl::StatusOr<SampleState> RedisSample::Seal(int64_t num_tokens, int64_t revision) {
  return Make([&](const SampleContent& content) -> absl::StatusOr<std::optional<Change>> {
    RR_RETURN_IF_ERROR(CheckSeal(content, num_tokens, revision));
    if (content.sealed()) return std::optional<Change>();
    return Merged(SealedContent(content, num_tokens), content.pieces, {}, {content.rows(), content.rows()}, true);
  });
}

absl::StatusOr<SampleState> RedisSample::Truncate(int64_t rows, std::optional<int64_t> expected_revision) {
  return Make([&](const SampleContent& content) -> absl::StatusOr<std::optional<Change>> {
    RR_RETURN_IF_ERROR(CheckTruncate(content, rows, expected_revision));
    SampleContent next = TruncatedContent(content, rows, context_->ids);
    for (RowPiece& piece : content.pieces.Find({0, rows})) next.pieces.Append(std::move(piece));
    return Change{std::move(next), rows / run_->info.options.block_rows, {}, /*once=*/true};
  });
}

absl::StatusOr<SampleSnapshot> RedisSample::Snapshot(absl::Span<const RowRange> rows, const AdmitSnapshot& admit) {
  RR_ASSIGN_OR_RETURN(RedisManifest found, FindExisting());
  const SampleContent& content = **found.content;
  std::vector<RowPiece> pieces;
  for (RowRange range : rows) {
    for (RowPiece& piece : content.pieces.Find(range)) pieces.push_back(std::move(piece));
  }
  if (admit) {
    RR_RETURN_IF_ERROR(admit(SnapshotBytes(content, pieces.size())));
  }
  Touch(found);
  return SampleSnapshot{
      .state = StateOf(*context_, name_, found), .rows = ReadAhead(std::move(pieces)), .tokens = content.tokens};
}

absl::StatusOr<SampleState> RedisSample::Stat() {
  const absl::StatusOr<RedisManifest> found = FindExisting();
  return found.ok() ? absl::StatusOr<SampleState>(StateOf(*context_, name_, *found)) : found.status();
}

RedisSample::Committed RedisSample::Commit(const RedisManifest& before, Change change) {
  std::vector<RedisCommand> puts;
  std::vector<std::string> chunks;
  for (const auto& block : change.added) {
    for (std::string& key : static_cast<const RedisBlock&>(*block).chunk_keys()) chunks.push_back(std::move(key));
    static_cast<const RedisBlock&>(*block).AddPuts(puts);
  }
  RedisManifest now{.version = context_->NewToken(), .sample = name_.sample, .last_used_ms = before.last_used_ms};
  const int64_t now_ms = context_->time.NowMs();
  if (!before.exists() || now_ms - before.last_used_ms >= run_->use_grain().count()) now.last_used_ms = now_ms;
  const auto next = std::make_shared<const SampleContent>(std::move(change.next));
  now.content = next;
  std::vector<RedisRequest> requests = {CommitRequest(before, *next, change.first_window, now, chunks)};
  requests.front().before = std::move(puts);
  requests.push_back(context_->AskForRun(*run_));  // Sent in the same round trip.
  const std::vector<RedisResult> answers = context_->Execute(requests);
  const RedisResult& answer = answers.front();
  const bool done = answer.reply.ok() && answer.reply->type == RedisReply::Type::kInteger && answer.reply->integer == 1;
  if (!done) {
    // Deletes the new chunks of a rejected commit, because no manifest refers to them. If the commit may have been
    // executed earlier (`repeated`) and another commit may have followed, the sample may need the chunks. Then they are
    // kept; those that no commit references expire.
    const bool rejected = answer.reply.ok() || absl::IsResourceExhausted(answer.reply.status());
    if (rejected && !answer.repeated && !chunks.empty()) {
      RedisCommand unlink({"UNLINK"});
      for (const std::string& key : chunks) unlink.Add(key);
      context_->Ask(std::move(unlink)).IgnoreError();
    }
    if (change.once && answer.repeated) {
      return MakeError(absl::StatusCode::kUnavailable,
                       absl::StrCat("an answer of Redis was lost; sample \"", name_.sample,
                                    "\" may or may not be truncated: check its revision with Stat"),
                       {.sample = name_.sample});
    }
    if (!answer.reply.ok()) return answer.reply.status();
    if (!answer.reply->text.empty()) return HandleCollisionError(name_.sample, answer.reply->text);
    return std::nullopt;
  }
  for (const auto& block : change.added) static_cast<RedisBlock&>(*block).Written();
  // If the run cannot be read, the commit still counts, unless the manifest was guessed: then nothing else shows that
  // the run exists.
  if (absl::Status there = CheckRun(*run_, answers.back());
      !there.ok() && (before.guessed || absl::IsNotFound(there))) {
    // If the run was dropped, its samples may be removed already. So what this commit wrote is removed, too.
    RedisRun dropped{.info = run_->info, .incarnation = run_->incarnation, .prefix = run_->prefix, .clears = true};
    ReleaseResult ignored;
    if (run_->ended) RemoveSamples(context_, dropped, {name_}, nullptr, /*unused=*/false, ignored).IgnoreError();
    return there;
  }
  context_->cache.Put(keys_->key, now);
  changed_ = true;
  version_ = now.version;
  return now;
}

RedisRequest RedisSample::CommitRequest(const RedisManifest& before, const SampleContent& next, int64_t first_window,
                                        const RedisManifest& now, const std::vector<std::string>& chunks) {
  const SampleContent* was = before.whole() ? before.content->get() : nullptr;
  const int32_t block_rows = run_->info.options.block_rows;
  const std::string p = absl::StrCat(static_cast<int>(name_.producer)), &part = keys_->part;
  const Producer other = name_.producer == Producer::kTrainer ? Producer::kRollout : Producer::kTrainer;
  std::vector<std::string> keys = {keys_->key,
                                   keys_->ManifestKey(other),
                                   absl::StrCat(part, "i", p),
                                   absl::StrCat(part, "g", p),
                                   absl::StrCat(part, "u", p),
                                   absl::StrCat(part, "n")};
  keys.insert(keys.end(), chunks.begin(), chunks.end());
  for (std::string& key : ReplacedChunks(was, next, first_window * block_rows)) keys.push_back(std::move(key));
  const bool used = !before.exists() || now.last_used_ms != before.last_used_ms;
  const int64_t bytes = now.stored_bytes();
  RedisRequest request = RedisContext::Of(kCommit, keys);
  request.command.Add(before.version)
      .Add(now.version)
      .Add(name_.sample)
      .Add(used ? absl::StrCat(now.last_used_ms) : "")
      .Add(was == nullptr || was->group != next.group ? absl::StrCat(next.group) : "")
      .Add(static_cast<int64_t>(chunks.size()))
      .Add(kReaderGrace.count())
      .Add(int64_t{next.sealed()} - int64_t{was != nullptr && was->sealed()})
      .Add(next.rows() - (was == nullptr ? 0 : was->rows()))
      .Add(bytes - (was == nullptr ? 0 : before.stored_bytes()));
  AddFields(was, next, first_window, block_rows, request.command);
  request.command.Add("v")
      .Add(now.version)
      .Add("n")
      .Add(absl::StrCat(next.rows(), " ", bytes, next.sealed() ? " 1" : " 0"));
  if (used) request.command.Add("u").Add(now.last_used_ms);
  if (was == nullptr) request.command.Add("id").Add(name_.sample);
  return request;
}

void RedisSample::Touch(RedisManifest& found) {
  const int64_t now_ms = context_->time.NowMs();
  if (now_ms - found.last_used_ms < run_->use_grain().count()) return;
  found.last_used_ms = now_ms;
  const std::string uses = absl::StrCat(keys_->part, "u", static_cast<int>(name_.producer));
  RedisRequest request = RedisContext::Of(kTouch, std::vector<std::string>{keys_->key, uses});
  request.command.Add(found.sample).Add(now_ms);
  context_->Ask(std::move(request)).IgnoreError();
  context_->cache.Put(keys_->key, found);
}

// WAIT waits until a replica has everything up to the connection's last command; from Redis 7.2 on, up to its last
// command that changed something. So the script below changes something: it gives the manifest an expiry time and takes
// it away again, which Redis allows even above maxmemory. It fails if the sample's version there is not that of this
// call's change: then a failover has most likely lost the change.
absl::Status RedisSample::AwaitSynced() {
  if (run_->info.options.durability != Durability::kSynced) return absl::OkStatus();
  RedisCommand look({"EVAL",
                     "if redis.call('HGET', KEYS[1], 'v') ~= ARGV[1] then "
                     "return redis.error_reply('MISCONF the version has changed') end "
                     "redis.call('PEXPIRE', KEYS[1], 100000) return redis.call('PERSIST', KEYS[1])",
                     "1", keys_->key, version_});
  const absl::StatusOr<RedisReply> reply = [&]() -> absl::StatusOr<RedisReply> {
    RR_ASSIGN_OR_RETURN(const bool has_wait_aof, context_->HasWaitAof());
    RedisCommand wait = has_wait_aof ? RedisCommand({"WAITAOF", "1", "1"}) : RedisCommand({"WAIT", "1"});
    wait.Add(std::chrono::milliseconds(kSyncedWait).count());
    return context_->Ask({.command = std::move(wait), .key = keys_->key, .before = {std::move(look)}});
  }();
  // WAIT counts replicas; WAITAOF counts files of the master and of replicas.
  const auto some = [](const RedisReply& count) { return count.integer > 0; };
  const bool kept =
      reply.ok() &&
      (reply->elements.empty() ? some(*reply) : std::all_of(reply->elements.begin(), reply->elements.end(), some));
  if (kept) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kUnavailable,
      absl::StrCat("sample \"", name_.sample, "\" was changed, but no replica of Redis has confirmed the change: ",
                   reply.ok() ? "no answer in time" : reply.status().message()),
      {.sample = name_.sample});
}

}  // namespace routing_replay::server
