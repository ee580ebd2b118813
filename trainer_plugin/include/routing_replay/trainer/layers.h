// Which decoder layers, and so which MoE layers, a pipeline rank owns.
//
// The rule is Megatron-Core's (get_num_layers_to_build, get_transformer_layer_offset), written for all ranks at once:
// a table of counts n[p][v], and offset[p][v] = the sum of n over all chunks before (v, p) with v outer and p inner.
// Megatron's own functions answer only for the rank that calls them.
#ifndef ROUTING_REPLAY_TRAINER_LAYERS_H_
#define ROUTING_REPLAY_TRAINER_LAYERS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::trainer {

// Decoder layers begin, …, end - 1 (global 0-based ids, dense ones counted). May be empty.
struct LayerRange {
  int32_t begin = 0;
  int32_t end = 0;

  constexpr int32_t size() const { return end - begin; }
  constexpr bool empty() const { return begin >= end; }
  constexpr bool contains(int32_t layer) const { return begin <= layer && layer < end; }
  friend constexpr bool operator==(LayerRange a, LayerRange b) { return a.begin == b.begin && a.end == b.end; }
};

// How the decoder is split; names in parentheses are Megatron's.
struct LayerSplit {
  int32_t num_layers = 0;                     // L (num_layers)
  int32_t pipeline_size = 1;                  // P (pipeline_model_parallel_size)
  int32_t virtual_stages = 1;                 // V, model chunks per rank (virtual_pipeline_model_parallel_size)
  std::optional<int32_t> first_stage_layers;  // (num_layers_in_first_pipeline_stage)
  std::optional<int32_t> last_stage_layers;   // (num_layers_in_last_pipeline_stage)
  bool account_for_embedding = false;         // (account_for_embedding_in_pipeline_split)
  bool account_for_loss = false;              // (account_for_loss_in_pipeline_split)
};

// The decoder layers of every chunk v of every pipeline rank p. Each layer is in exactly one chunk; within a rank the
// chunks ascend. Immutable, thread-safe.
class LayerTable {
 public:
  // INVALID_ARGUMENT (kField, field "split.…"), the message stating the rule that is broken, for every split that
  // Megatron refuses, and for those it accepts although its chunks then do not hold each layer once: P = 1 with V > 1
  // or with both a first and a last stage.
  static absl::StatusOr<LayerTable> Create(const LayerSplit& split);

  int32_t num_layers() const { return num_layers_; }
  int32_t pipeline_size() const { return pipeline_size_; }
  int32_t virtual_stages() const { return virtual_stages_; }
  // Requires 0 <= pp_rank < pipeline_size() and 0 <= chunk < virtual_stages().
  LayerRange range(int32_t pp_rank, int32_t chunk) const { return ranges_[pp_rank * virtual_stages_ + chunk]; }

 private:
  LayerTable() = default;

  int32_t num_layers_ = 0;
  int32_t pipeline_size_ = 1;
  int32_t virtual_stages_ = 1;
  std::vector<LayerRange> ranges_;  // [p][v]
};

// A MoE layer of a rank, under both of its numbers.
struct OwnedLayer {
  int32_t layer_id = 0;  // Global decoder layer id.
  int32_t ordinal = 0;   // Index among MoE layers.
  int32_t chunk = 0;     // v
  friend bool operator==(const OwnedLayer&, const OwnedLayer&) = default;
};

// The MoE layers of one chunk, or of all chunks of the rank where `chunk` is not set; layer ids ascend either way. May
// be empty. INVALID_ARGUMENT (kField) if the table is of another number of layers than the geometry, or if there is no
// such rank or chunk.
absl::StatusOr<std::vector<OwnedLayer>> OwnedMoeLayers(const Geometry& geometry, const LayerTable& table,
                                                       int32_t pp_rank, std::optional<int32_t> chunk = std::nullopt);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_LAYERS_H_
