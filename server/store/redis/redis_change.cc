#include "server/store/redis/redis_change.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/records/sample_record.h"
#include "server/store/redis/redis_scripts.h"
#include "server/store/store_errors.h"

namespace routing_replay {
namespace {

// So much comes along with the commit, which saves a round trip. Scripts copy what they are given; from some size on
// that costs more.
constexpr int64_t kBytesAlong = int64_t{16} << 10;

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
    absl::Status status = Prepare();
    if (!status.ok()) {
      Discard();
      return status;
    }
    const RedisResult answer = context_.cluster->ExecuteOne(CommitRequest(), context_.Deadline());
    if (!answer.reply.ok()) {
      if (answer.reply.status().code() == absl::StatusCode::kResourceExhausted) Discard();
      return answer.reply.status();
    }
    const std::vector<RedisReply>& said = answer.reply->elements;
    if (said.size() != 2) return absl::InternalError("redis: the script gave another answer");
    if (said[0].integer != redis_scripts::kDone) {
      Discard();
      if (said[0].integer == redis_scripts::kCollision) return HandleCollisionError(change_.name.sample, said[1].text);
      return std::nullopt;
    }
    return Finish(said[1].text);
  }

 private:
  const SampleContent* before() const {
    return change_.before.exists() && change_.before.content.ok() ? change_.before.content->get() : nullptr;
  }

  // Chunks before the manifest, and the sample's note in the index before the sample.
  absl::Status Prepare() {
    std::vector<RedisRequest> requests;
    if (before() == nullptr || before()->group != change_.next.group) {
      requests.push_back(run_.index.Mark(change_.name));
    }
    int64_t bytes = 0;
    for (const auto& block : change_.added) bytes += BlockOf(block).bytes();
    along_ = bytes <= kBytesAlong;
    for (const auto& block : change_.added) {
      const std::vector<std::string> keys = BlockOf(block).chunk_keys();
      chunk_keys_.insert(chunk_keys_.end(), keys.begin(), keys.end());
      first_chunks_.push_back(BlockOf(block).FirstChunk());
      if (along_) continue;
      requests.push_back(PutRequest(keys[0], first_chunks_.back().span()));
      const std::vector<absl::Span<const uint8_t>> others = BlockOf(block).OtherChunks();
      for (size_t i = 0; i < others.size(); ++i) requests.push_back(PutRequest(keys[i + 1], others[i]));
    }
    if (requests.empty()) return absl::OkStatus();
    for (const RedisResult& result : context_.cluster->Execute(requests, context_.Deadline())) {
      if (!result.reply.ok()) return result.reply.status();
    }
    return absl::OkStatus();
  }

  RedisRequest PutRequest(const std::string& key, absl::Span<const uint8_t> value) const {
    RedisRequest request{.command = RedisCommand({"SET", key}), .key = key};
    request.command.AddBorrowed(value).Add("PX").Add(run_.lives.chunk().count());
    return request;
  }

  RedisRequest CommitRequest() {
    const bool trainer = change_.name.producer == Producer::kTrainer;
    std::vector<std::string> keys = {key_, keys_.Manifest(trainer ? Producer::kRollout : Producer::kTrainer)};
    keys.insert(keys.end(), chunk_keys_.begin(), chunk_keys_.end());
    const RedisScript& script = redis_scripts::Commit();
    RedisRequest request{.command = script.Call(keys), .key = key_, .script = &script};
    now_ms_ = context_.time.NowMs();
    request.command.Add(change_.before.stamp.version)
        .Add(absl::StrCat(context_.server, ".", context_.content_ids.Next()))
        .Add(change_.name.sample)
        .Add(now_ms_)
        .Add(run_.lives.manifest().count())
        .Add(keys_.Channel())
        .Add(ChangeMessage(context_, change_.name))
        .Add(run_.lives.chunk().count())
        .Add(static_cast<int64_t>(along_ ? chunk_keys_.size() : 0));
    if (along_) {
      for (const Buffer& chunk : first_chunks_) request.command.AddBorrowed(chunk.span());
    }
    AddFields(request.command);
    return request;
  }

  void AddFields(RedisCommand& command) {
    const int32_t block_rows = run_.info.options.block_rows;
    const int64_t windows = WindowCount(change_.next.rows(), block_rows);
    const int64_t windows_before = before() == nullptr ? 0 : WindowCount(before()->rows(), block_rows);
    command.Add(std::max<int64_t>(0, windows_before - windows));
    for (int64_t window = windows; window < windows_before; ++window) command.Add(WindowField(window));
    command.Add("head").Add(EncodeHead(change_.next));
    const auto id_of = [](const StoredBlock& block) { return static_cast<const RedisBlock&>(block).id(); };
    for (int64_t window = change_.first_window; window < windows; ++window) {
      command.Add(WindowField(window))
          .Add(EncodeWindow(change_.next, change_.next.pieces.all(), block_rows, window, id_of));
    }
    if (!change_.before.exists()) command.Add("x").Add(now_ms_ + run_.lives.chunk().count());
  }

  absl::StatusOr<std::optional<RedisFound>> Finish(const std::string& version) {
    RedisFound now{.stamp = change_.before.stamp};
    if (!absl::SimpleAtoi(version, &now.stamp.version)) return absl::InternalError("redis: a version is no number");
    if (!change_.before.exists()) {
      now.stamp.birth = now.stamp.version;
      now.stamp.sample = change_.name.sample;
      now.stamp.kept_until_ms = now_ms_ + run_.lives.chunk().count();
    }
    now.stamp.last_used_ms = now_ms_;
    for (const auto& block : change_.added) static_cast<RedisBlock&>(*block).Written();
    auto content = std::make_shared<const SampleContent>(std::move(change_.next));
    context_.known.PutContent(key_, now.stamp.version, now.stamp.birth, content);
    context_.known.Acknowledge(key_, {now.stamp.birth, content->revision, content->rows(), content->sealed()});
    now.content = std::move(content);
    Tidy(now);
    return now;
  }

  // What need not be there for the change to stand. If it fails, the index is behind until the sample's next change,
  // and what nobody shows any more goes when its time is up.
  void Tidy(const RedisFound& now) {
    std::vector<RedisRequest> requests = {run_.index.Put(change_.name, now.manifest())};
    AddExpiries(Replaced(**now.content), context_.reader_grace, requests);  // Readers may still hold them.
    for (const RedisResult& result : context_.cluster->Execute(requests, context_.Deadline())) {
      result.reply.status().IgnoreError();
    }
  }

  std::vector<RowPiece> Replaced(const SampleContent& now) const {
    std::vector<RowPiece> replaced;
    if (before() == nullptr) return replaced;
    const int64_t first_row = change_.first_window * run_.info.options.block_rows;
    std::set<uint64_t> stay;
    for (size_t i = now.pieces.FirstEndingAfter(first_row); i < now.pieces.size(); ++i) {
      stay.insert(BlockOf(now.pieces[i]).id());
    }
    const RowPieces& pieces = before()->pieces;
    for (size_t i = pieces.FirstEndingAfter(first_row); i < pieces.size(); ++i) {
      if (!stay.contains(BlockOf(pieces[i]).id())) replaced.push_back(pieces[i]);
    }
    return replaced;
  }

  // Nobody has seen the blocks.
  void Discard() {
    if (along_) return;
    std::vector<RedisRequest> requests;
    for (const std::string& key : chunk_keys_) {
      requests.push_back({.command = RedisCommand({"UNLINK", key}), .key = key});
    }
    if (!requests.empty()) context_.cluster->Execute(requests, context_.Deadline());
  }

  RedisContext& context_;
  RedisRun& run_;
  RedisChange& change_;
  const RedisSampleKeys keys_;
  const std::string key_;
  std::vector<std::string> chunk_keys_;
  std::vector<Buffer> first_chunks_;  // Of each block; commands borrow them.
  bool along_ = false;                // The chunks come with the commit.
  int64_t now_ms_ = 0;
};

}  // namespace

void AddExpiries(absl::Span<const RowPiece> pieces, std::chrono::milliseconds life,
                 std::vector<RedisRequest>& requests) {
  std::set<uint64_t> seen;
  for (const RowPiece& piece : pieces) {
    if (!seen.insert(BlockOf(piece).id()).second) continue;
    for (const std::string& key : BlockOf(piece).chunk_keys()) {
      RedisCommand command({"PEXPIRE", key});
      command.Add(life.count());
      requests.push_back({.command = std::move(command), .key = key});
    }
  }
}

absl::StatusOr<std::optional<RedisFound>> Commit(RedisContext& context, RedisRun& run, RedisChange change) {
  return CommitWork(context, run, change).Run();
}

void Touch(RedisContext& context, RedisRun& run, const SampleName& name, RedisFound& found) {
  const int64_t now_ms = context.time.NowMs();
  const bool chunks = found.stamp.kept_until_ms < now_ms + run.lives.manifest().count();
  if (!chunks && now_ms - found.stamp.last_used_ms < run.lives.grain().count()) return;
  if (chunks) {
    std::vector<RedisRequest> requests;
    AddExpiries((*found.content)->pieces.all(), run.lives.chunk(), requests);
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
}

std::string ChangeMessage(const RedisContext& context, const SampleName& name) {
  return absl::StrCat(context.server, " ", static_cast<int>(name.producer), " ", name.sample);
}

}  // namespace routing_replay
