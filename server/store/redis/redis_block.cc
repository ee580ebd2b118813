#include "server/store/redis/redis_block.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

// What Redis takes for a key of the length of ours with a time to live, beside the value.
constexpr int64_t kKeyBytes = 200;

int64_t CrcBytes(const Geometry& geometry) {
  return static_cast<int64_t>(sizeof(uint32_t)) * geometry.num_moe_layers();
}

int64_t ValueBytes(const Geometry& geometry, int64_t rows, Codec codec) {
  return CrcBytes(geometry) + geometry.block_bytes(rows, codec);
}

// A value as it was read: the planes' CRCs, aligned, and the bytes behind them.
struct ReadValue {
  std::string first;  // The only chunk, or all of them.
  std::vector<uint32_t> crcs;
};

}  // namespace

int64_t RedisBlock::bytes() const { return ValueBytes(*place_->geometry, rows().size(), codec()); }

std::vector<std::string> RedisBlock::chunk_keys() const {
  std::vector<std::string> keys;
  for (int64_t chunk = 0; chunk < WindowCount(bytes(), kRedisChunkBytes); ++chunk) {
    keys.push_back(place_->keys.Chunk(place_->producer, id_, chunk));
  }
  return keys;
}

void RedisBlock::AddPuts(std::chrono::milliseconds life, std::vector<RedisCommand>& commands) const {
  const std::vector<uint32_t>& crcs = unwritten_->plane_crc32c;
  const absl::Span<const uint8_t> head(reinterpret_cast<const uint8_t*>(crcs.data()), CrcBytes(*place_->geometry));
  const int64_t before = CrcBytes(*place_->geometry);  // The bytes of the value in front of the block's.
  int64_t begin = 0;
  for (const std::string& key : chunk_keys()) {
    const int64_t end = std::min(begin + kRedisChunkBytes, bytes());
    const int64_t in_block = std::max<int64_t>(0, begin - before);
    const absl::Span<const uint8_t> part = unwritten_->bytes.span().subspan(in_block, end - before - in_block);
    commands.push_back(RedisCommand({"SET", key}));
    commands.back().AddBorrowed(begin == 0 ? head : absl::Span<const uint8_t>(), part).Add("PX").Add(life.count());
    begin = end;
  }
}

void RedisBlock::AddGets(std::vector<RedisRequest>& requests) const {
  for (const std::string& key : chunk_keys()) requests.push_back({.command = RedisCommand({"GET", key}), .key = key});
}

absl::StatusOr<LoadedBlock> RedisBlock::Take(absl::Span<RedisResult> results) const {
  const Geometry& geometry = *place_->geometry;
  auto value = std::make_shared<ReadValue>();
  for (RedisResult& result : results) {
    if (!result.reply.ok()) return WithSample(result.reply.status(), place_->sample);
    if (result.reply->is_nil()) return Gone();
    absl::StatusOr<std::string> chunk = TakeText(*std::move(result.reply));
    if (!chunk.ok()) return chunk.status();
    if (value->first.empty()) {
      value->first = *std::move(chunk);
    } else {
      value->first.append(*chunk);
    }
  }
  if (static_cast<int64_t>(value->first.size()) != bytes()) {
    return MakeError(absl::StatusCode::kDataLoss,
                     absl::StrCat("stored rows ", ToString(rows()), " of ", place_->sample, " are damaged: they have ",
                                  value->first.size(), " bytes, not ", bytes()),
                     {.reason = Reason::kChecksum, .sample = place_->sample, .row = rows().begin});
  }
  const int64_t crc_bytes = CrcBytes(geometry);
  value->crcs.resize(geometry.num_moe_layers());
  std::memcpy(value->crcs.data(), value->first.data(), crc_bytes);
  const BlockView view{rows(),
                       codec(),
                       value->crcs,
                       {reinterpret_cast<const uint8_t*>(value->first.data()) + crc_bytes,
                        value->first.size() - static_cast<size_t>(crc_bytes)}};
  return LoadedBlock{std::move(value), view};
}

// Who holds an old look at a sample has some time to read it. After that the block is gone because the sample was
// changed; but if the sample still shows it, then it is lost.
absl::Status RedisBlock::Gone() const {
  const std::string key = place_->keys.Manifest(place_->producer);
  const RedisResult manifest =
      place_->cluster->ExecuteOne({.command = RedisCommand({"HVALS", key}), .key = key}, place_->Deadline());
  if (!manifest.reply.ok()) return manifest.reply.status();
  const bool shown = std::any_of(manifest.reply->elements.begin(), manifest.reply->elements.end(),
                                 [&](const RedisReply& field) { return WindowShows(field.text, id_); });
  const std::string what = absl::StrCat("rows ", ToString(rows()), " of ", place_->sample);
  if (!shown) {
    return MakeError(absl::StatusCode::kUnavailable,
                     absl::StrCat(what, " were changed or released while they were read"),
                     {.sample = place_->sample, .row = rows().begin});
  }
  return MakeError(absl::StatusCode::kDataLoss, absl::StrCat("stored ", what, " are not there any more"),
                   {.reason = Reason::kChecksum, .sample = place_->sample, .row = rows().begin});
}

absl::StatusOr<LoadedBlock> RedisBlock::LoadBytes() const {
  if (unwritten_) return LoadedBlock{nullptr, unwritten_->view()};
  std::vector<RedisRequest> requests;
  AddGets(requests);
  std::vector<RedisResult> results = place_->cluster->Execute(requests, place_->Deadline());
  return Take(absl::MakeSpan(results));
}

int64_t RedisHome::Cost(const Geometry& geometry, int64_t rows, Codec codec) const {
  const int64_t bytes = ValueBytes(geometry, rows, codec);
  return bytes + WindowCount(bytes, kRedisChunkBytes) * kKeyBytes;
}

std::shared_ptr<StoredBlock> RedisHome::Keep(Block block, int64_t cost) {
  return std::make_shared<RedisBlock>(place_, ids_.Next(), std::move(block), cost);
}

std::shared_ptr<StoredBlock> RedisHome::Found(const BlockPlace& at) const {
  return std::make_shared<RedisBlock>(place_, at, Cost(*place_->geometry, at.rows.size(), at.codec));
}

}  // namespace routing_replay::server
