#include "server/store/redis/redis_context.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/wire/mutex.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "server/log/event_log.h"
#include "server/store/store_rules.h"

namespace routing_replay::server {
namespace {

// Limit of the manifest cache: enough for 10,000 samples of 4,000 rows.
constexpr int64_t kCachedBytes = int64_t{64} << 20;
constexpr int64_t kEntryBytes = 512, kPieceBytes = 200;
constexpr std::chrono::minutes kBetweenWarnings{1};

// The memory that Redis needs for one key of this store, without its value.
constexpr int64_t kKeyBytes = 200;
// A chunk expires after this time unless a commit has referenced it. That is long enough: a commit is tried for at most
// half a minute (RedisStoreOptions::timeout).
constexpr std::chrono::milliseconds kUncommitted = std::chrono::minutes(10);
// How much is read at a time for a reader. A larger block is read alone.
constexpr int64_t kReadAheadBytes = int64_t{4} << 20;

int64_t BytesOf(const RedisManifest& manifest) {
  if (!manifest.whole()) return 0;
  const SampleContent& content = **manifest.content;
  return kEntryBytes + content.metadata_bytes() + static_cast<int64_t>(content.pieces.size()) * kPieceBytes;
}

// Parses the answer to HGETALL; without a version the sample does not exist.
RedisManifest ParseManifest(RedisReply reply, int32_t block_rows, const RedisHome& home) {
  RedisManifest manifest;
  std::string head;
  std::map<int64_t, std::string> windows;
  for (size_t i = 0; i + 1 < reply.elements.size(); i += 2) {
    absl::string_view field = reply.elements[i].text;
    std::string& value = reply.elements[i + 1].text;
    int64_t window = 0;
    if (field == "v") {
      manifest.version = std::move(value);
    } else if (field == "id") {
      manifest.sample = std::move(value);
    } else if (field == "u") {
      if (!absl::SimpleAtoi(value, &manifest.last_used_ms)) manifest.last_used_ms = 0;
    } else if (field == "head") {
      head = std::move(value);
    } else if (absl::ConsumePrefix(&field, "w") && absl::SimpleAtoi(field, &window)) {
      windows[window] = std::move(value);
    }
  }
  if (!manifest.exists()) return manifest;
  std::vector<std::string> records;
  for (auto& [window, record] : windows) records.push_back(std::move(record));
  absl::StatusOr<SampleContent> content =
      DecodeContent(head, records, block_rows, [&](const BlockRef& at) { return home.Found(at); });
  if (content.ok()) {
    manifest.content = std::make_shared<const SampleContent>(*std::move(content));
  } else {
    manifest.content = WithSample(content.status(), manifest.sample);
  }
  return manifest;
}

bool IsForCaller(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsResourceExhausted(status);
}

}  // namespace

std::optional<RedisManifest> RedisManifestCache::Find(const std::string& key) {
  MutexLock lock(mutex_);
  const auto found = manifests_.find(key);
  return found == manifests_.end() ? std::nullopt : std::optional(found->second);
}

void RedisManifestCache::Put(const std::string& key, const RedisManifest& manifest) {
  RedisManifest before;  // `before` and `forgotten` are freed after the lock is released.
  std::unordered_map<std::string, RedisManifest> forgotten;
  MutexLock lock(mutex_);
  before = std::exchange(manifests_[key], manifest);
  bytes_ += BytesOf(manifest) - BytesOf(before);
  if (bytes_ <= kCachedBytes) return;
  forgotten.swap(manifests_);
  bytes_ = 0;
}

void RedisManifestCache::Clear() {
  std::unordered_map<std::string, RedisManifest> forgotten;  // Freed after the lock is released.
  MutexLock lock(mutex_);
  forgotten.swap(manifests_);
  bytes_ = 0;
}

std::vector<RedisResult> RedisContext::Execute(absl::Span<const RedisRequest> requests) {
  std::vector<RedisResult> results = cluster->Execute(requests, Deadline());
  for (size_t i = 0; i < results.size(); ++i) {
    absl::StatusOr<RedisReply>& reply = results[i].reply;
    if (reply.ok() || IsForCaller(reply.status())) continue;
    Warn(requests[i].command.name(), reply.status());
    reply = absl::UnavailableError("Redis rejects commands of this server; the server's log has the cause");
  }
  return results;
}

absl::StatusOr<RedisReply> RedisContext::Ask(RedisRequest request) {
  return std::move(Execute({&request, 1}).front().reply);
}

absl::StatusOr<RedisReply> RedisContext::Ask(RedisCommand command) { return Ask(Of(std::move(command))); }

RedisRequest RedisContext::Of(RedisCommand command) {
  std::string key(command.argument(1));
  return {.command = std::move(command), .key = std::move(key)};
}

// Sends the script's source each time. Redis finds the compiled script by the hash of the source, and hashing a KiB
// takes less time than executing the script.
RedisRequest RedisContext::Of(absl::string_view script, absl::Span<const std::string> keys) {
  RedisCommand command({"EVAL"});
  command.AddBorrowed(script).Add(static_cast<int64_t>(keys.size()));
  for (const std::string& key : keys) command.Add(key);
  return {.command = std::move(command), .key = keys.front()};
}

absl::StatusOr<bool> RedisContext::HasWaitAof() {
  if (const std::optional<bool> known = has_wait_aof_) return *known;
  // Of() uses the second word, INFO, as the key, which only decides which master is asked.
  RR_ASSIGN_OR_RETURN(const RedisReply info, Ask(RedisCommand({"COMMAND", "INFO", "WAITAOF"})));
  const bool has = info.elements.size() == 1 && !info.elements[0].is_nil();
  has_wait_aof_ = has;
  return has;
}

absl::Status CheckRun(RedisRun& run, const RedisResult& answer) {
  if (!answer.reply.ok()) return answer.reply.status();
  if (answer.reply->text == run.incarnation || run.clears) return absl::OkStatus();
  run.ended = true;
  return NoRunError(run.info.run);
}

absl::StatusOr<std::vector<RedisManifest>> LookAt(const std::shared_ptr<RedisContext>& context, RedisRun& run,
                                                  absl::Span<const SampleName> names) {
  std::vector<RedisRequest> requests = {context->AskForRun(run)};
  std::vector<std::shared_ptr<const SampleKeys>> keys_of;
  for (const SampleName& name : names) {
    keys_of.push_back(std::make_shared<const SampleKeys>(context, run, name));
    requests.push_back(RedisContext::Of(RedisCommand({"HGETALL", keys_of.back()->key})));
  }
  std::vector<RedisResult> results = context->Execute(requests);
  RR_RETURN_IF_ERROR(CheckRun(run, results[0]));
  std::vector<RedisManifest> found(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    absl::StatusOr<RedisReply>& reply = results[i + 1].reply;
    if (!reply.ok()) return reply.status();
    found[i] = ParseManifest(*std::move(reply), run.info.options.block_rows, RedisHome(keys_of[i]));
    if (found[i].whole()) context->cache.Put(keys_of[i]->key, found[i]);
  }
  return found;
}

void RedisContext::Warn(const std::string& what, const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    const Clock::Time now = Clock::Real().Now();
    const auto [last, first] = warned_.try_emplace(what, now);
    if (!first && now - last->second < kBetweenWarnings) return;
    last->second = now;
  }
  LogEvent(LogLevel::kWarning, "warning", absl::StrCat("redis store: ", what, ": ", status.message()));
}

SampleKeys::SampleKeys(std::shared_ptr<RedisContext> redis, const RedisRun& run, const SampleName& name)
    : context(std::move(redis)),
      geometry(run.info.geometry),
      sample(name.sample),
      part(run.PartKeysOf(name.handle)),
      handle(absl::StrCat(absl::Hex(name.handle))),
      producer(name.producer),
      key(ManifestKey(name.producer)) {}

std::string SampleKeys::ManifestKey(Producer of) const {
  return absl::StrCat(part, "m", static_cast<int>(of), ":", handle);
}

std::string SampleKeys::Chunk(uint64_t block, int64_t chunk) const {
  return absl::StrCat(part, static_cast<int>(producer), ":", handle, ":", absl::Hex(block), ":", chunk);
}

int64_t RedisBlock::bytes() const { return ValueBytes(*keys_->geometry, rows().size(), codec()); }

std::vector<std::string> RedisBlock::chunk_keys() const {
  std::vector<std::string> keys;
  for (int64_t chunk = 0; chunk < WindowCount(bytes(), kRedisChunkBytes); ++chunk) {
    keys.push_back(keys_->Chunk(id_, chunk));
  }
  return keys;
}

// Uses SET with NX, which leaves an existing key as it is. If the request is sent again after its commit was executed,
// the chunks must not get an expiry time again.
void RedisBlock::AddPuts(std::vector<RedisCommand>& commands) const {
  const absl::Span<const uint8_t> crcs = CrcBytes(unwritten_->plane_crc32c);
  const absl::string_view head(reinterpret_cast<const char*>(crcs.data()), crcs.size());
  const auto before = static_cast<int64_t>(head.size());  // Where the block's bytes start in the value.
  int64_t begin = 0;
  for (const std::string& key : chunk_keys()) {
    const int64_t end = std::min(begin + kRedisChunkBytes, bytes());
    const int64_t in_block = std::max<int64_t>(0, begin - before);
    const absl::string_view part(reinterpret_cast<const char*>(unwritten_->bytes.data()) + in_block,
                                 end - before - in_block);
    commands.push_back(RedisCommand({"SET", key}));
    commands.back().AddBorrowed(begin == 0 ? head : "", part).Add("PX").Add(kUncommitted.count()).Add("NX");
    begin = end;
  }
}

void RedisBlock::AddGets(std::vector<RedisRequest>& requests) const {
  for (const std::string& key : chunk_keys()) requests.push_back(RedisContext::Of(RedisCommand({"GET", key})));
}

absl::StatusOr<LoadedBlock> RedisBlock::Take(absl::Span<RedisResult> results) const {
  auto value = std::make_shared<std::string>();  // All chunks, joined.
  for (RedisResult& result : results) {
    if (!result.reply.ok()) return WithSample(result.reply.status(), keys_->sample);
    if (result.reply->is_nil()) return Gone();
    if (value->empty()) {
      value->swap(result.reply->text);
    } else {
      value->append(result.reply->text);
    }
  }
  if (static_cast<int64_t>(value->size()) != bytes()) {
    return MakeError(absl::StatusCode::kDataLoss,
                     absl::StrCat("stored rows ", ToString(rows()), " of ", keys_->sample, " are damaged: they have ",
                                  value->size(), " bytes, expected ", bytes()),
                     {.reason = Reason::kChecksum, .sample = keys_->sample, .row = rows().begin});
  }
  const absl::Span<const uint8_t> all(reinterpret_cast<const uint8_t*>(value->data()), value->size());
  return BlockOfValue(*keys_->geometry, rows(), codec(), std::move(value), all);
}

// Why a block is missing. If the sample does not reference it any more, the sample was changed and kReaderGrace is
// over: a reader with an old snapshot was too slow. If it still does, the block was lost.
absl::Status RedisBlock::Gone() const {
  RR_ASSIGN_OR_RETURN(const RedisReply manifest, keys_->context->Ask(RedisCommand({"HVALS", keys_->key})));
  const bool shown = std::any_of(manifest.elements.begin(), manifest.elements.end(),
                                 [&](const RedisReply& field) { return WindowShows(field.text, id_); });
  const std::string what = absl::StrCat("rows ", ToString(rows()), " of ", keys_->sample);
  if (!shown) {
    return MakeError(absl::StatusCode::kUnavailable,
                     absl::StrCat(what, " were changed or released while they were read"),
                     {.sample = keys_->sample, .row = rows().begin});
  }
  return MakeError(absl::StatusCode::kDataLoss, absl::StrCat("stored ", what, " are missing"),
                   {.reason = Reason::kChecksum, .sample = keys_->sample, .row = rows().begin});
}

absl::StatusOr<LoadedBlock> RedisBlock::LoadBytes() const {
  if (unwritten_) return LoadedBlock{nullptr, unwritten_->view()};
  std::vector<RedisRequest> requests;
  AddGets(requests);
  std::vector<RedisResult> results = keys_->context->Execute(requests);
  return Take(absl::MakeSpan(results));
}

int64_t RedisHome::Cost(const Geometry& geometry, int64_t rows, Codec codec) const {
  const int64_t bytes = ValueBytes(geometry, rows, codec);
  return bytes + WindowCount(bytes, kRedisChunkBytes) * kKeyBytes;
}

std::shared_ptr<StoredBlock> RedisHome::Keep(Block block, int64_t cost) {
  return std::make_shared<RedisBlock>(keys_, keys_->context->ids.Next(), std::move(block), cost);
}

std::shared_ptr<StoredBlock> RedisHome::Found(const BlockRef& at) const {
  return std::make_shared<RedisBlock>(keys_, at, Cost(*keys_->geometry, at.rows.size(), at.codec));
}

std::vector<std::string> ChunkKeys(absl::Span<const RowPiece> pieces, std::set<uint64_t> without) {
  std::vector<std::string> keys;
  for (const RowPiece& piece : pieces) {
    const RedisBlock& block = BlockOf(piece);
    if (!without.insert(block.id()).second) continue;
    for (std::string& key : block.chunk_keys()) keys.push_back(std::move(key));
  }
  return keys;
}

// The blocks of one snapshot, read from Redis a few MiB at a time.
class ReadAheadList {
 public:
  explicit ReadAheadList(std::vector<RowPiece> pieces) : pieces_(std::move(pieces)), read_(pieces_.size()) {}

  absl::StatusOr<LoadedBlock> Load(size_t index) {
    MutexLock lock(mutex_);
    if (!read_[index]) Read(index);
    absl::StatusOr<LoadedBlock> block = *std::move(read_[index]);
    read_[index].reset();
    return block;
  }

 private:
  void Read(size_t first) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<RedisRequest> requests;
    std::vector<size_t> ends;
    int64_t bytes = 0;
    for (size_t i = first; i < pieces_.size() && !read_[i]; ++i) {
      bytes += BlockOf(pieces_[i]).bytes();
      if (i > first && bytes > kReadAheadBytes) break;
      BlockOf(pieces_[i]).AddGets(requests);
      ends.push_back(requests.size());
    }
    std::vector<RedisResult> results = BlockOf(pieces_[first]).keys_->context->Execute(requests);
    size_t begin = 0;
    for (size_t i = 0; i < ends.size(); ++i) {
      read_[first + i] = BlockOf(pieces_[first + i]).Take(absl::MakeSpan(results).subspan(begin, ends[i] - begin));
      begin = ends[i];
    }
  }

  const std::vector<RowPiece> pieces_;
  Mutex mutex_;
  std::vector<std::optional<absl::StatusOr<LoadedBlock>>> read_ ABSL_GUARDED_BY(mutex_);
};

namespace {

class ReadAheadBlock final : public KeptBlock {
 public:
  ReadAheadBlock(std::shared_ptr<ReadAheadList> list, size_t index, const KeptBlock& block)
      : KeptBlock(block.rows(), block.codec()), list_(std::move(list)), index_(index) {}

 private:
  absl::StatusOr<LoadedBlock> LoadBytes() const override { return list_->Load(index_); }

  const std::shared_ptr<ReadAheadList> list_;
  const size_t index_;
};

}  // namespace

std::vector<StoredRows> ReadAhead(std::vector<RowPiece> pieces) {
  std::vector<StoredRows> rows;
  for (const RowPiece& piece : pieces) rows.push_back({nullptr, piece.rows});
  const auto list = std::make_shared<ReadAheadList>(pieces);
  for (size_t i = 0; i < pieces.size(); ++i) {
    rows[i].block = std::make_shared<ReadAheadBlock>(list, i, *pieces[i].stored);
  }
  return rows;
}

}  // namespace routing_replay::server
