#include "server/store/redis/redis_change.h"

#include <deque>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/records/sample_record.h"
#include "server/store/redis/redis_scripts.h"
#include "server/store/store_errors.h"

namespace routing_replay::server {
namespace {

Producer OtherProducer(Producer producer) {
  return producer == Producer::kTrainer ? Producer::kRollout : Producer::kTrainer;
}

const RedisBlock& BlockOf(const RowPiece& piece) { return static_cast<const RedisBlock&>(*piece.stored); }
const RedisBlock& BlockOf(const std::shared_ptr<StoredBlock>& block) { return static_cast<const RedisBlock&>(*block); }

class CommitWork {
 public:
  CommitWork(RedisContext& context, RedisRun& run, RedisChange& change)
      : context_(context),
        run_(run),
        change_(change),
        keys_(context.keys, run.life, change.name.handle),
        key_(keys_.Manifest(change.name.producer)) {}

  absl::StatusOr<std::optional<RedisFound>> Run() {
    const absl::StatusOr<bool> marked = Mark();
    if (!marked.ok()) return marked.status();
    if (!*marked) return std::nullopt;
    std::vector<RedisRequest> requests = {CommitRequest()}, puts;
    if (change_.before.guessed) requests.push_back(AskForLife(context_, run_));
    const std::vector<RedisResult> answers = context_.cluster->Execute(requests, context_.Deadline());
    absl::StatusOr<std::optional<RedisFound>> now = Take(answers.front(), puts);
    if (!puts.empty()) context_.cluster->Execute(puts, context_.TidyDeadline());
    if (!now.ok() || !*now || !change_.before.guessed) return now;
    if (absl::Status life = CheckLifeOf(run_, answers.back()); !life.ok()) {
      if (absl::IsNotFound(life)) TakeAway(**now);
      return life;
    }
    return now;
  }

  // Chunks in front of the manifest, in one pipeline: the script looks whether they are there.
  RedisRequest CommitRequest();
  // What the answer to it means. `puts`: what is then to be done for the index; if that fails, the index is behind
  // until the sample's next change.
  absl::StatusOr<std::optional<RedisFound>> Take(const RedisResult& answer, std::vector<RedisRequest>& puts) {
    if (!answer.reply.ok()) {
      if (answer.reply.status().code() == absl::StatusCode::kResourceExhausted) Discard(answer);
      return answer.reply.status();
    }
    const std::vector<RedisReply>& said = answer.reply->elements;
    if (said.size() != 2) return absl::InternalError("redis: the script gave another answer");
    if (said[0].integer != redis_scripts::kDone) {
      Discard(answer);
      if (said[0].integer == redis_scripts::kMade) return Look();
      if (change_.once && answer.repeated) return Doubt();
      if (said[0].integer == redis_scripts::kCollision) return HandleCollisionError(change_.name.sample, said[1].text);
      return std::nullopt;
    }
    absl::StatusOr<RedisFound> now = Finish(said[1].text);
    if (!now.ok()) return now.status();
    if (!with_index()) puts.push_back(run_.index.Put(change_.name, now->manifest()));
    return *std::move(now);
  }

 private:
  const SampleContent* before() const {
    return change_.before.exists() && change_.before.content.ok() ? change_.before.content->get() : nullptr;
  }
  // One server has the sample and its place in the index, so that both change in one step.
  bool with_index() const { return !context_.cluster->clustered(); }

  // Whether this use is written down, and the manifest's time begins anew: as seldom as Touch does it.
  bool noted() const {
    return !change_.before.exists() || now_ms_ - change_.before.stamp.last_used_ms >= run_.lives.grain().count();
  }

  // The sample's note in the index, before the sample. False: there was a sample, and nobody has said yet that it is
  // lost.
  absl::StatusOr<bool> Mark() {
    if (with_index() || change_.lost_version != 0) return true;
    if (before() != nullptr && before()->group == change_.next.group) return true;
    const bool made = !change_.before.exists();
    const RedisResult answer = context_.cluster->ExecuteOne(run_.index.Mark(change_.name, made), context_.Deadline());
    if (!answer.reply.ok()) return answer.reply.status();
    return answer.reply->integer != 0;
  }

  // As somebody else left it; nothing if it is gone.
  absl::StatusOr<std::optional<RedisFound>> Look() {
    absl::StatusOr<std::vector<RedisFound>> found = LookAt(context_, run_, {&change_.name, 1});
    if (!found.ok()) return found.status();
    RedisFound& now = found->front();
    if (!now.exists() || now.stamp.sample != change_.name.sample) return std::nullopt;
    if (!now.content.ok()) return now.content.status();
    return std::move(now);
  }

  // The change may have been made. If it was the last one to raise the revision, the script has told so.
  absl::StatusOr<std::optional<RedisFound>> Doubt() {
    const absl::StatusOr<std::optional<RedisFound>> now = Look();
    if (!now.ok()) return now.status();
    if (!*now) return std::nullopt;
    const RedisFound& before = change_.before;
    const bool can_tell =
        (*now)->stamp.birth == before.stamp.birth && (*(*now)->content)->revision <= (*before.content)->revision + 1;
    if (can_tell) return std::nullopt;
    return MakeError(absl::StatusCode::kUnavailable,
                     absl::StrCat("the answer of Redis was lost, and others have changed sample \"",
                                  change_.name.sample, "\" since: the change may have been made or not"),
                     {.sample = change_.name.sample});
  }

  void AddFields(RedisCommand& command) {
    const int32_t block_rows = run_.info.options.block_rows;
    const int64_t windows = WindowCount(next_->rows(), block_rows);
    const int64_t windows_before = before() == nullptr ? 0 : WindowCount(before()->rows(), block_rows);
    std::vector<int64_t> written, removed;
    for (int64_t window = change_.first_window; window < std::max(windows, windows_before); ++window) {
      const bool inside = change_.first_window < window && window + 1 < windows;
      if (window < windows && !(inside && IsQuietWindow(*next_, block_rows, window))) {
        written.push_back(window);
      } else if (window < windows_before) {
        removed.push_back(window);
      }
    }
    command.Add(static_cast<int64_t>(removed.size()));
    for (const int64_t window : removed) command.Add(WindowField(window));
    command.Add("head").Add(EncodeHead(*next_, block_rows));
    const auto id_of = [](const StoredBlock& block) { return static_cast<const RedisBlock&>(block).id(); };
    for (const int64_t window : written) {
      command.Add(WindowField(window)).Add(EncodeWindow(*next_, next_->pieces.all(), block_rows, window, id_of));
    }
    if (change_.once) command.Add("t").Add(token_);
    if (!change_.before.exists()) command.Add("x").Add(now_ms_ + run_.lives.chunk().count());
  }

  absl::StatusOr<RedisFound> Finish(const std::string& version) {
    RedisFound now{.stamp = change_.before.stamp};
    if (!absl::SimpleAtoi(version, &now.stamp.version)) return absl::InternalError("redis: a version is no number");
    if (!change_.before.exists()) {
      now.stamp.birth = now.stamp.version;
      now.stamp.sample = change_.name.sample;
      now.stamp.kept_until_ms = now_ms_ + run_.lives.chunk().count();
    }
    if (noted()) now.stamp.last_used_ms = now_ms_;
    for (const auto& block : change_.added) static_cast<RedisBlock&>(*block).Written();
    now.content = next_;
    context_.known.PutContent(key_, now.manifest());
    context_.known.Acknowledge(key_, {now.stamp.birth, next_->revision, next_->rows(), next_->sealed()});
    return now;
  }

  // Readers may still hold what the change replaces: it goes some time later.
  std::vector<std::string> ReplacedKeys() const {
    std::vector<std::string> keys;
    if (before() == nullptr) return keys;
    const int64_t first_row = change_.first_window * run_.info.options.block_rows;
    std::set<uint64_t> seen;
    const RowPieces& now = change_.next.pieces;
    for (size_t i = now.FirstEndingAfter(first_row); i < now.size(); ++i) seen.insert(BlockOf(now[i]).id());
    const RowPieces& pieces = before()->pieces;
    for (size_t i = pieces.FirstEndingAfter(first_row); i < pieces.size(); ++i) {
      if (!seen.insert(BlockOf(pieces[i]).id()).second) continue;
      const std::vector<std::string> chunks = BlockOf(pieces[i]).chunk_keys();
      keys.insert(keys.end(), chunks.begin(), chunks.end());
    }
    return keys;
  }

  // Nobody has seen the blocks, unless an earlier sending of the same commit was carried out and others have changed
  // the sample since: where that cannot be told, they are left to their time to live.
  void Discard(const RedisResult& answer) {
    if (!answer.repeated) Unlink(chunk_keys_);
  }

  // The run was dropped before, so nobody clears away what was made in it now.
  void TakeAway(const RedisFound& now) {
    context_.known.Forget(key_);
    if (change_.before.exists()) return;  // Who clears the run away needs its manifest to find the blocks.
    std::vector<std::string> keys = chunk_keys_;
    keys.push_back(key_);
    Unlink(keys);
    context_.cluster->ExecuteOne(run_.index.Drop(change_.name, now.stamp.version), context_.TidyDeadline());
  }

  void Unlink(const std::vector<std::string>& keys) {
    if (keys.empty()) return;
    RedisRequest request{.command = RedisCommand({"UNLINK"}), .key = keys.front()};
    for (const std::string& key : keys) request.command.Add(key);
    context_.cluster->ExecuteOne(request, context_.TidyDeadline());
  }

  RedisContext& context_;
  RedisRun& run_;
  RedisChange& change_;
  const RedisSampleKeys keys_;
  const std::string key_;
  std::vector<std::string> chunk_keys_;
  std::shared_ptr<const SampleContent> next_;
  std::string token_;
  int64_t now_ms_ = 0;
};

RedisRequest CommitWork::CommitRequest() {
  const std::vector<std::string> replaced = ReplacedKeys();
  std::vector<std::string> keys = {key_};
  std::vector<RedisCommand> puts;
  for (const auto& block : change_.added) {
    const std::vector<std::string> chunks = BlockOf(block).chunk_keys();
    chunk_keys_.insert(chunk_keys_.end(), chunks.begin(), chunks.end());
    BlockOf(block).AddPuts(run_.lives.chunk(), puts);
  }
  keys.insert(keys.end(), chunk_keys_.begin(), chunk_keys_.end());
  keys.insert(keys.end(), replaced.begin(), replaced.end());
  if (!change_.before.exists()) keys.push_back(keys_.Manifest(OtherProducer(change_.name.producer)));
  now_ms_ = context_.time.NowMs();
  next_ = std::make_shared<const SampleContent>(std::move(change_.next));
  std::vector<std::string> words;
  if (with_index()) {
    const std::vector<std::string> index = run_.index.KeysOf(change_.name);
    keys.insert(keys.end(), index.begin(), index.end());
    const std::optional<RedisManifest> was =
        before() == nullptr ? std::nullopt : std::optional(change_.before.manifest());
    words = run_.index.ChangeWords(change_.name, was ? &*was : nullptr, {{.last_used_ms = now_ms_}, next_});
  }
  const RedisScript& script = redis_scripts::Commit();
  RedisRequest request{.command = script.Call(keys), .key = key_, .script = &script, .before = std::move(puts)};
  token_ = absl::StrCat(context_.server, ".", context_.content_ids.Next());
  request.command.Add(change_.before.stamp.version)
      .Add(token_)
      .Add(change_.name.sample)
      .Add(now_ms_)
      .Add(noted() ? absl::StrCat(run_.lives.manifest().count()) : "")
      .Add(keys_.Channel())
      .Add(ChangeMessage(context_, change_.name))
      .Add(static_cast<int64_t>(chunk_keys_.size()))
      .Add(static_cast<int64_t>(replaced.size()))
      .Add(context_.reader_grace.count())
      .Add(run_.lives.chunk().count())
      .Add(change_.lost_version)
      .Add(static_cast<int64_t>(words.size()));
  for (const std::string& word : words) request.command.Add(word);
  AddFields(request.command);
  return request;
}

}  // namespace

std::vector<std::string> ChunkKeys(absl::Span<const RowPiece> pieces) {
  std::vector<std::string> keys;
  std::set<uint64_t> seen;
  for (const RowPiece& piece : pieces) {
    if (!seen.insert(BlockOf(piece).id()).second) continue;
    const std::vector<std::string> chunks = BlockOf(piece).chunk_keys();
    keys.insert(keys.end(), chunks.begin(), chunks.end());
  }
  return keys;
}

absl::StatusOr<std::optional<RedisFound>> Commit(RedisContext& context, RedisRun& run, RedisChange change) {
  return CommitWork(context, run, change).Run();
}

std::vector<absl::StatusOr<std::optional<RedisFound>>> CommitAll(RedisContext& context, RedisRun& run,
                                                                 absl::Span<RedisChange> changes) {
  std::deque<CommitWork> works;
  std::vector<RedisRequest> requests, puts;
  for (RedisChange& change : changes) requests.push_back(works.emplace_back(context, run, change).CommitRequest());
  const std::vector<RedisResult> answers = context.cluster->Execute(requests, context.Deadline());
  std::vector<absl::StatusOr<std::optional<RedisFound>>> found;
  for (size_t i = 0; i < works.size(); ++i) found.push_back(works[i].Take(answers[i], puts));
  if (!puts.empty()) context.cluster->Execute(puts, context.TidyDeadline());
  return found;
}

RedisChange ChangeOfHead(const RedisRun& run, const SampleName& name, const RedisFound& found, SampleContent next) {
  for (const RowPiece& piece : (*found.content)->pieces.all()) next.pieces.Append(piece);
  const int64_t windows = WindowCount(next.rows(), run.info.options.block_rows);
  return {name, found, std::move(next), windows, {}};
}

void Touch(RedisContext& context, RedisRun& run, const SampleName& name, RedisFound& found) {
  const int64_t now_ms = context.time.NowMs();
  const bool chunks = found.stamp.kept_until_ms < now_ms + run.lives.manifest().count();
  if (!chunks && now_ms - found.stamp.last_used_ms < run.lives.grain().count()) return;
  if (chunks) {
    std::vector<RedisRequest> requests;
    for (const std::string& key : ChunkKeys((*found.content)->pieces.all())) {
      RedisCommand command({"PEXPIRE", key});
      command.Add(run.lives.chunk().count());
      requests.push_back({.command = std::move(command), .key = key});
    }
    for (const RedisResult& result : context.cluster->Execute(requests, context.Deadline())) {
      if (!result.reply.ok()) return;
    }
    found.stamp.kept_until_ms = now_ms + run.lives.chunk().count();
  }
  found.stamp.last_used_ms = now_ms;
  const std::string key = RedisSampleKeys(context.keys, run.life, name.handle).Manifest(name.producer);
  const RedisScript& script = redis_scripts::Touch();
  RedisRequest request{.command = script.Call({key}), .key = key, .script = &script};
  request.command.Add(found.stamp.birth)
      .Add(now_ms)
      .Add(run.lives.manifest().count())
      .Add(chunks ? absl::StrCat(found.stamp.kept_until_ms) : "");
  context.cluster->ExecuteOne(request, context.Deadline());
  context.known.PutContent(key, found.manifest());
}

std::string ChangeMessage(const RedisContext& context, const SampleName& name) {
  return absl::StrCat(context.server, " ", static_cast<int>(name.producer), " ", name.sample);
}

}  // namespace routing_replay::server
