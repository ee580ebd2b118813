// Blocks that a store keeps, wherever their bytes are.
#ifndef SERVER_STORE_KEPT_BLOCK_H_
#define SERVER_STORE_KEPT_BLOCK_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/wire/block/block.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"

namespace routing_replay::server {

// The bytes of a block, for as long as `owner` is held.
struct LoadedBlock {
  std::shared_ptr<const void> owner;
  BlockView view;
};

// A block of the store, wherever its bytes are. It stays readable as long as somebody holds it, whatever happens to its
// sample. Thread-safe. A run may have millions of them: members are as small as they can be.
class KeptBlock {
 public:
  // `rows` lie in one window.
  KeptBlock(RowRange rows, Codec codec)
      : first_row_(rows.begin), num_rows_(static_cast<int32_t>(rows.size())), codec_(codec) {}
  virtual ~KeptBlock() = default;

  RowRange rows() const { return {first_row_, first_row_ + num_rows_}; }
  Codec codec() const { return codec_; }

 private:
  friend absl::StatusOr<LoadedBlock> Load(std::shared_ptr<const KeptBlock> block);

  // What Load gives; without an owner, the block itself is it.
  virtual absl::StatusOr<LoadedBlock> LoadBytes() const = 0;

  const int64_t first_row_;
  const int32_t num_rows_;
  const Codec codec_;
};

// May read from a disk or a network. DATA_LOSS if the bytes are not there or not what was stored; UNAVAILABLE if they
// cannot be read now. That bytes fit their CRCs is for whoever uses them to see.
inline absl::StatusOr<LoadedBlock> Load(std::shared_ptr<const KeptBlock> block) {
  absl::StatusOr<LoadedBlock> loaded = block->LoadBytes();
  if (loaded.ok() && loaded->owner == nullptr) loaded->owner = std::move(block);
  return loaded;
}

}  // namespace routing_replay::server

#endif  // SERVER_STORE_KEPT_BLOCK_H_
