// Blocks as Redis keeps them: the CRCs of the planes (u32, little-endian), then the block's bytes, cut into chunks.
#ifndef SERVER_STORE_REDIS_REDIS_BLOCK_H_
#define SERVER_STORE_REDIS_REDIS_BLOCK_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/wire/clock.h"
#include "routing_replay/wire/geometry.h"
#include "server/store/call_deadline.h"
#include "server/store/records/sample_record.h"
#include "server/store/redis/client/redis_cluster.h"
#include "server/store/redis/redis_keys.h"
#include "server/store/sample/content_ids.h"
#include "server/store/sample/stored_block.h"

namespace routing_replay::server {

// Longer values hold a server up for too long: one thread of it serves everybody.
inline constexpr int64_t kRedisChunkBytes = int64_t{1} << 20;

// Where the blocks of one sample are.
struct RedisPlace {
  std::shared_ptr<RedisCluster> cluster;
  std::chrono::milliseconds timeout;  // Of a read, where the caller has no earlier deadline.
  std::shared_ptr<const Geometry> geometry;
  RedisSampleKeys keys;
  Producer producer = Producer::kRollout;
  std::string sample;

  Clock::Time Deadline() const { return std::min(Clock::Real().Now() + timeout, CallDeadline::OfThisThread()); }
};

// Thread-safe, but for Written.
class RedisBlock final : public StoredBlock {
 public:
  // One that is to be written.
  RedisBlock(std::shared_ptr<const RedisPlace> place, uint64_t id, Block block, int64_t cost)
      : StoredBlock(nullptr, block.rows, block.codec, cost),
        place_(std::move(place)),
        id_(id),
        unwritten_(std::move(block)) {}
  RedisBlock(std::shared_ptr<const RedisPlace> place, const BlockPlace& at, int64_t cost)
      : StoredBlock(nullptr, at.rows, at.codec, cost), place_(std::move(place)), id_(at.id) {}

  uint64_t id() const { return id_; }
  const RedisPlace& place() const { return *place_; }
  int64_t bytes() const;  // Of the value, of all chunks together.
  std::vector<std::string> chunk_keys() const;

  // Of a block that is to be written: the commands that put its chunks, with this time to live. They borrow its bytes.
  void AddPuts(std::chrono::milliseconds life, std::vector<RedisCommand>& commands) const;
  // It is in Redis now: its bytes are let go of. Before anybody else sees the block.
  void Written() { unwritten_.reset(); }
  // It will not be written: its bytes, if it has not given them back before.
  std::optional<Block> TakeBack() { return std::exchange(unwritten_, std::nullopt); }

  // The commands that get its chunks, and the block out of their answers, in order.
  void AddGets(std::vector<RedisRequest>& requests) const;
  absl::StatusOr<LoadedBlock> Take(absl::Span<RedisResult> results) const;

 private:
  // UNAVAILABLE if it is not there because the sample has changed since.
  absl::StatusOr<LoadedBlock> LoadBytes() const override;
  absl::Status Gone() const;

  const std::shared_ptr<const RedisPlace> place_;
  const uint64_t id_;
  std::optional<Block> unwritten_;
};

// Makes the blocks of one sample. Thread-safe.
class RedisHome final : public BlockHome {
 public:
  // `ids` outlives it.
  RedisHome(std::shared_ptr<const RedisPlace> place, ContentIds& ids)
      : BlockHome(nullptr), place_(std::move(place)), ids_(ids) {}

  // Bytes in Redis, about: value and keys.
  int64_t Cost(const Geometry& geometry, int64_t rows, Codec codec) const override;
  std::shared_ptr<StoredBlock> Keep(Block block, int64_t cost) override;
  // A block that is there already.
  std::shared_ptr<StoredBlock> Found(const BlockPlace& at) const;

 private:
  const std::shared_ptr<const RedisPlace> place_;
  ContentIds& ids_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_BLOCK_H_
