// Blocks as Redis keeps them: the CRCs of the planes (u32, little-endian), then the block's bytes, cut into chunks.
#ifndef SERVER_STORE_REDIS_REDIS_BLOCK_H_
#define SERVER_STORE_REDIS_REDIS_BLOCK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "routing_replay/wire/geometry.h"
#include "server/store/records/records.h"
#include "server/store/redis/redis_context.h"
#include "server/store/sample/row_pieces.h"

namespace routing_replay::server {

// Longer values hold a server up for too long: one thread of it serves everybody.
inline constexpr int64_t kRedisChunkBytes = int64_t{1} << 20;

// The keys of a sample and its blocks. Immutable; held by the blocks.
struct SampleKeys {
  SampleKeys(std::shared_ptr<RedisContext> redis, const RedisRun& run, const SampleName& name);

  std::string ManifestKey(Producer of) const;
  std::string Chunk(uint64_t block, int64_t chunk) const;

  const std::shared_ptr<RedisContext> context;
  const std::shared_ptr<const Geometry> geometry;
  const std::string sample;  // For messages; may be empty.
  const std::string part;    // RedisRun::PartKeysOf.
  const std::string handle;  // In hexadecimal.
  const Producer producer;
  const std::string key;  // Of the manifest.
};

// Thread-safe, but for Written and TakeBack.
class RedisBlock final : public StoredBlock {
 public:
  // One that is to be written.
  RedisBlock(std::shared_ptr<const SampleKeys> keys, uint64_t id, Block block, int64_t cost)
      : StoredBlock(nullptr, block.rows, block.codec, cost),
        keys_(std::move(keys)),
        id_(id),
        unwritten_(std::move(block)) {}
  RedisBlock(std::shared_ptr<const SampleKeys> keys, const BlockRef& at, int64_t cost)
      : StoredBlock(nullptr, at.rows, at.codec, cost), keys_(std::move(keys)), id_(at.id) {}

  uint64_t id() const { return id_; }
  int64_t bytes() const;  // Of the value, of all chunks together.
  std::vector<std::string> chunk_keys() const;

  // Of a block that is to be written: the commands that put its chunks. They borrow its bytes.
  void AddPuts(std::vector<RedisCommand>& commands) const;
  // It is in Redis now: its bytes are let go of. Before anybody else sees the block.
  void Written() { unwritten_.reset(); }
  // It will not be written: its bytes, if it has not given them back before.
  std::optional<Block> TakeBack() { return std::exchange(unwritten_, std::nullopt); }

  // The commands that get its chunks, and the block out of their answers, in order.
  void AddGets(std::vector<RedisRequest>& requests) const;
  absl::StatusOr<LoadedBlock> Take(absl::Span<RedisResult> results) const;

 private:
  friend class ReadAheadList;
  // UNAVAILABLE if it is not there because the sample has changed since.
  absl::StatusOr<LoadedBlock> LoadBytes() const override;
  absl::Status Gone() const;

  const std::shared_ptr<const SampleKeys> keys_;
  const uint64_t id_;
  std::optional<Block> unwritten_;
};

inline const RedisBlock& BlockOf(const RowPiece& piece) { return static_cast<const RedisBlock&>(*piece.stored); }

// Makes the blocks of one sample. Thread-safe.
class RedisHome final : public BlockHome {
 public:
  explicit RedisHome(std::shared_ptr<const SampleKeys> keys) : BlockHome(nullptr), keys_(std::move(keys)) {}

  // Bytes in Redis, about: value and keys.
  int64_t Cost(const Geometry& geometry, int64_t rows, Codec codec) const override;
  std::shared_ptr<StoredBlock> Keep(Block block, int64_t cost) override;
  // A block that is there already.
  std::shared_ptr<StoredBlock> Found(const BlockRef& at) const;

 private:
  const std::shared_ptr<const SampleKeys> keys_;
};

// The chunks of all blocks that the pieces show, each once, but for blocks in `without`.
std::vector<std::string> ChunkKeys(absl::Span<const RowPiece> pieces, std::set<uint64_t> without = {});

// The rows of a snapshot, whose blocks are read a few MiB at a time: who loads one will want the next, and a round trip
// for each block of 100 KB would take longer than its bytes.
std::vector<StoredRows> ReadAhead(std::vector<RowPiece> pieces);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_BLOCK_H_
