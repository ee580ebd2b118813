#include "server/store/redis/read_ahead.h"

#include <memory>
#include <optional>
#include <utility>

#include "proto/wire/mutex.h"
#include "server/store/redis/redis_block.h"

namespace routing_replay::server {
namespace {

// So much is read ahead of a reader.
constexpr int64_t kReadAheadBytes = int64_t{4} << 20;

// The blocks of one snapshot.
class ReadAheadList {
 public:
  explicit ReadAheadList(std::vector<std::shared_ptr<const RedisBlock>> blocks)
      : blocks_(std::move(blocks)), read_(blocks_.size()) {}

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
    for (size_t i = first; i < blocks_.size() && !read_[i]; ++i) {
      bytes += blocks_[i]->bytes();
      if (i > first && bytes > kReadAheadBytes) break;
      blocks_[i]->AddGets(requests);
      ends.push_back(requests.size());
    }
    const RedisPlace& place = blocks_[first]->place();
    std::vector<RedisResult> results = place.cluster->Execute(requests, place.Deadline());
    size_t begin = 0;
    for (size_t i = 0; i < ends.size(); ++i) {
      read_[first + i] = blocks_[first + i]->Take(absl::MakeSpan(results).subspan(begin, ends[i] - begin));
      begin = ends[i];
    }
  }

  const std::vector<std::shared_ptr<const RedisBlock>> blocks_;
  Mutex mutex_;
  std::vector<std::optional<absl::StatusOr<LoadedBlock>>> read_ ABSL_GUARDED_BY(mutex_);
};

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
  std::vector<std::shared_ptr<const RedisBlock>> blocks;
  blocks.reserve(pieces.size());
  for (RowPiece& piece : pieces) blocks.push_back(std::static_pointer_cast<const RedisBlock>(piece.stored));
  const auto list = std::make_shared<ReadAheadList>(std::move(blocks));
  std::vector<StoredRows> rows;
  for (size_t i = 0; i < pieces.size(); ++i) {
    rows.push_back({std::make_shared<ReadAheadBlock>(list, i, *pieces[i].stored), pieces[i].rows});
  }
  return rows;
}

}  // namespace routing_replay::server
