// Blocks that a store keeps, wherever their bytes are.
#ifndef SERVER_STORE_KEPT_BLOCK_H_
#define SERVER_STORE_KEPT_BLOCK_H_

#include <memory>

#include "absl/status/statusor.h"
#include "proto/wire/block/block.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"

namespace routing_replay {

// The bytes of a block, for as long as `owner` is held.
struct LoadedBlock {
  std::shared_ptr<const void> owner;
  BlockView view;
};

// A block of the store, wherever its bytes are. It stays readable as long as somebody holds it, whatever happens to its
// sample. Thread-safe.
class KeptBlock : public std::enable_shared_from_this<KeptBlock> {
 public:
  KeptBlock(RowRange rows, Codec codec) : rows_(rows), codec_(codec) {}
  virtual ~KeptBlock() = default;

  RowRange rows() const { return rows_; }
  Codec codec() const { return codec_; }
  // May read from a disk or a network. DATA_LOSS if the bytes are not there or not what was stored; UNAVAILABLE if they
  // cannot be had now. That bytes fit their CRCs is for whoever uses them to see.
  virtual absl::StatusOr<LoadedBlock> Load() const = 0;

 private:
  const RowRange rows_;
  const Codec codec_;
};

}  // namespace routing_replay

#endif  // SERVER_STORE_KEPT_BLOCK_H_
