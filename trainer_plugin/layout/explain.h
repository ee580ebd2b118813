// A micro-batch as a person reads it: which rank holds which rows of which sample, and which layers.
#ifndef TRAINER_PLUGIN_LAYOUT_EXPLAIN_H_
#define TRAINER_PLUGIN_LAYOUT_EXPLAIN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "routing_replay/trainer/layers.h"
#include "routing_replay/trainer/rows.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"

namespace routing_replay::trainer {

// Local rows begin, begin + stride, … below end.
struct LocalRows {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t stride = 1;
  friend bool operator==(const LocalRows&, const LocalRows&) = default;
};

// What a rank holds of one sequence, or its padding.
struct HeldRows {
  std::optional<int32_t> sequence;  // Not set: padding.
  int32_t cp_rank = 0;
  std::optional<int32_t> tp_rank;    // Not set: all tensor-parallel ranks hold the same.
  std::vector<RowRange> replayed;    // Rows of the sequence.
  std::vector<RowRange> unrecorded;  // Likewise: tokens without a route.
  std::vector<LocalRows> at;         // Where they are at the router.
};

// By sequence, then by rank; padding last. What holds nothing is left out. With an explicit partition, whose positions
// only their own rank says, that of `rank` alone. INVALID_ARGUMENT as BuildRowMap, and (kField) for more than
// 4096 ranks.
absl::StatusOr<std::vector<HeldRows>> ExplainMicroBatch(const MicroBatchLayout& layout, const RowRank& rank);

// The layers of one chunk of one pipeline rank.
struct HeldLayers {
  int32_t pp_rank = 0;
  int32_t chunk = 0;
  LayerRange decoder;
  std::vector<RowRange> moe;  // Decoder ids.
  int32_t num_moe = 0;
  int32_t mtp = 0;  // Multi-token-prediction layers beside them.
};

// By rank, then by chunk. INVALID_ARGUMENT as OwnedMoeLayers.
absl::StatusOr<std::vector<HeldLayers>> ExplainLayerTable(const Geometry& geometry, const LayerTable& table);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_EXPLAIN_H_
