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
#include "absl/types/span.h"
#include "routing_replay/trainer/hybrid_pattern.h"
#include "routing_replay/trainer/pipeline_layout.h"
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

// How the decoder is split; names in parentheses are Megatron's. At most one of: a given first or last stage,
// account_for_…, layout, hybrid; with hybrid, a first or last stage may be given where its pattern has no "|".
struct LayerSplit {
  int32_t num_layers = 0;                     // L (num_layers)
  int32_t pipeline_size = 1;                  // P (pipeline_model_parallel_size)
  std::optional<int32_t> virtual_stages;      // V, model chunks per rank (virtual_pipeline_model_parallel_size). Not
                                              // set: what layout or hybrid say, else 1.
  std::optional<int32_t> first_stage_layers;  // (num_layers_in_first_pipeline_stage)
  std::optional<int32_t> last_stage_layers;   // (num_layers_in_last_pipeline_stage)
  bool account_for_embedding = false;         // (account_for_embedding_in_pipeline_split)
  bool account_for_loss = false;              // (account_for_loss_in_pipeline_split)
  std::optional<PipelineLayout> layout;       // (pipeline_model_parallel_layout)
  std::optional<HybridPattern> hybrid;        // (hybrid_layer_pattern)
  int32_t mtp_num_layers = 0;                 // (mtp_num_layers)
};

// Where the multi-token-prediction layers are: all of them in one chunk. They carry no routes of a rollout and are in
// no LayerRange: their layer_number starts at 1 again, so that the number alone names a decoder layer, never a MTP one.
struct MtpPlacement {
  int32_t layers = 0;
  int32_t pp_rank = 0;
  int32_t chunk = 0;
  friend bool operator==(const MtpPlacement&, const MtpPlacement&) = default;
};

// A decoder layer by its place: the index-th layer of chunk v of pipeline rank p.
struct LayerPlace {
  int32_t pp_rank = 0;
  int32_t chunk = 0;
  int32_t index = 0;
  friend bool operator==(const LayerPlace&, const LayerPlace&) = default;
};

// The decoder layers of every chunk v of every pipeline rank p. Each layer is in exactly one chunk; within a rank the
// chunks ascend. Immutable, thread-safe.
class LayerTable {
 public:
  // INVALID_ARGUMENT (kField, field "split.…"), the message stating the rule that is broken, for every split that
  // Megatron refuses, and for those it accepts although its chunks then do not hold each layer once: P = 1 with several
  // stages (but for a hybrid pattern with V given) or with both a first and a last stage, and a hybrid pattern whose
  // given first and last stage of P = 2 leave layers out.
  // Sources: get_num_layers_to_build and get_transformer_layer_offset; TransformerConfig.__post_init__;
  // PipelineParallelLayerLayout.validate_layer_layout; select_pipeline_segment.
  static absl::StatusOr<LayerTable> Create(const LayerSplit& split);

  int32_t num_layers() const { return num_layers_; }
  int32_t pipeline_size() const { return pipeline_size_; }
  int32_t virtual_stages() const { return virtual_stages_; }
  // Requires 0 <= pp_rank < pipeline_size() and 0 <= chunk < virtual_stages().
  LayerRange range(int32_t pp_rank, int32_t chunk) const { return ranges_[pp_rank * virtual_stages_ + chunk]; }

  const MtpPlacement& mtp() const { return mtp_; }
  // MTP layers of this chunk.
  int32_t mtp_layers(int32_t pp_rank, int32_t chunk) const {
    return pp_rank == mtp_.pp_rank && chunk == mtp_.chunk ? mtp_.layers : 0;
  }

  // Global decoder layer id to place and back; nothing for a layer or a place that there is not. Megatron's
  // layer_number is the id + 1.
  std::optional<LayerPlace> FindPlace(int32_t layer_id) const;
  std::optional<int32_t> FindLayer(const LayerPlace& place) const;

 private:
  LayerTable() = default;

  int32_t num_layers_ = 0;
  int32_t pipeline_size_ = 1;
  int32_t virtual_stages_ = 1;
  std::vector<LayerRange> ranges_;  // [p][v]
  MtpPlacement mtp_;
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

// `layers` without those that the trainer leaves to their own choice: hash-routed layers, whose ids come from a table
// of token ids, are hooked by some trainers and left native by others. Ordinals stay. INVALID_ARGUMENT (kField, field
// "native_layers") for an id that is no MoE layer of the geometry.
absl::StatusOr<std::vector<OwnedLayer>> WithoutNativeLayers(const Geometry& geometry, std::vector<OwnedLayer> layers,
                                                            absl::Span<const int32_t> native_layers);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_LAYERS_H_
