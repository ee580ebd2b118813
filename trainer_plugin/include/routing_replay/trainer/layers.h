// Which decoder layers, and so which MoE layers, a pipeline rank owns.
//
// The rule is Megatron-Core's (get_num_layers_to_build, get_transformer_layer_offset), written for all ranks at once:
// chunk v of pipeline rank p has n[p][v] layers, and begins after the layers of all chunks before it in the order of v,
// then p. Megatron's own functions only return the values of the calling rank.
#ifndef ROUTING_REPLAY_TRAINER_LAYERS_H_
#define ROUTING_REPLAY_TRAINER_LAYERS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::trainer {

// Pipeline layouts: every stage of the pipeline written out, as Megatron-Core's pipeline_model_parallel_layout does
// (PipelineParallelLayerLayout).

// What a stage may contain.
inline constexpr char kStageEmbedding = 'E';
inline constexpr char kStageDecoder = 't';
inline constexpr char kStageMtp = 'm';
inline constexpr char kStageLoss = 'L';

// Limit for the text of a layout after its repeats are expanded; far above what any model needs.
inline constexpr size_t kMaxLayoutText = size_t{1} << 16;

// Stage s = v·P + p is chunk v of pipeline rank p. A stage is a string of the four characters above, one per layer or
// block; it may be empty. Only LayerTable::Create checks that the stages together make a valid model.
struct PipelineLayout {
  std::vector<std::string> stages;
  friend bool operator==(const PipelineLayout&, const PipelineLayout&) = default;
};

// Parses the text form of Megatron (PipelineParallelLayerLayout.parse_str_to_list), such as "Et*3|(tt|)*29m|L". "|"
// separates stages; x*n repeats the character x n times; (…)*n repeats a group n times, and the group may contain "|"
// but no other group; commas are ignored. Groups are expanded before single characters, from left to right, each once.
// n may be 0. Anything else is INVALID_ARGUMENT (kField, field "split.layout"); the message quotes the part that was
// not understood.
absl::StatusOr<PipelineLayout> ParsePipelineLayout(absl::string_view text);

// Parses the list form: for each stage a list of the names embedding, decoder, mtp and loss. Case and spaces around a
// name are ignored. All other names are INVALID_ARGUMENT as above. This includes encoder, which Megatron defines but
// does not support.
absl::StatusOr<PipelineLayout> PipelineLayoutFromNames(const std::vector<std::vector<std::string>>& stages);

// Hybrid patterns: one symbol per layer of a model that mixes Mamba, attention and MoE layers, as Megatron-Core's
// hybrid_layer_pattern (formerly hybrid_override_pattern) writes them (parse_hybrid_pattern).

struct HybridPattern {
  // The symbols of each stage (stages are separated by "|"); stage s = v·P + p is chunk v of pipeline rank p. Every
  // symbol (M G * D + - E) is one decoder layer with a layer id of its own; only layers with the symbol E carry routes.
  std::vector<std::string> stages;
  std::string mtp;         // The symbols of one MTP depth; empty without MTP.
  int32_t mtp_depths = 0;  // Number of MTP depths.

  int32_t num_layers() const;
  friend bool operator==(const HybridPattern&, const HybridPattern&) = default;
};

// Parses a pattern such as "M*ME|MEME/*E/*E": the decoder, and after each "/" one MTP depth; all depths must be equal.
// INVALID_ARGUMENT (kField, field "split.hybrid_pattern") for an unknown symbol, for "|" in an MTP depth, for depths
// that differ, and for "*" together with "D" or "+", because a model has only one kind of attention.
absl::StatusOr<HybridPattern> ParseHybridPattern(absl::string_view text);

// The decoder layers begin, …, end - 1 (global 0-based ids, dense layers included). May be empty.
struct LayerRange {
  int32_t begin = 0;
  int32_t end = 0;

  constexpr int32_t size() const { return end - begin; }
  constexpr bool empty() const { return begin >= end; }
  constexpr bool contains(int32_t layer) const { return begin <= layer && layer < end; }
  friend constexpr bool operator==(LayerRange a, LayerRange b) { return a.begin == b.begin && a.end == b.end; }
};

// How the decoder is split over pipeline stages; names in parentheses are Megatron's. Without further fields, every
// stage has equally many layers. Any other split is given in exactly one of these four ways:
//   - first_stage_layers, last_stage_layers or both
//   - account_for_embedding, account_for_loss or both
//   - layout
//   - hybrid; a pattern without "|" may be combined with first_stage_layers and last_stage_layers
struct LayerSplit {
  int32_t num_layers = 0;                     // L (num_layers)
  int32_t pipeline_size = 1;                  // P (pipeline_model_parallel_size)
  std::optional<int32_t> virtual_stages;      // V, model chunks per rank (virtual_pipeline_model_parallel_size).
                                              // Not set: taken from layout or hybrid, else 1.
  std::optional<int32_t> first_stage_layers;  // (num_layers_in_first_pipeline_stage)
  std::optional<int32_t> last_stage_layers;   // (num_layers_in_last_pipeline_stage)
  bool account_for_embedding = false;         // (account_for_embedding_in_pipeline_split)
  bool account_for_loss = false;              // (account_for_loss_in_pipeline_split)
  std::optional<PipelineLayout> layout;       // (pipeline_model_parallel_layout)
  std::optional<HybridPattern> hybrid;        // (hybrid_layer_pattern)
  int32_t mtp_num_layers = 0;                 // (mtp_num_layers)
};

// The chunk that has all multi-token-prediction (MTP) layers. A rollout records no routes for them. They are in no
// LayerRange, because their layer_number starts at 1 again: a layer number without further context always means a
// decoder layer.
struct MtpPlacement {
  int32_t layers = 0;
  int32_t pp_rank = 0;
  int32_t chunk = 0;
  friend bool operator==(const MtpPlacement&, const MtpPlacement&) = default;
};

// The decoder layers of every chunk v of every pipeline rank p. Each layer is in exactly one chunk; the chunks of a
// rank are in ascending order of their layers. Immutable, thread-safe.
class LayerTable {
 public:
  // INVALID_ARGUMENT (kField, field "split.…") for every split that Megatron rejects, with a message that states the
  // broken rule. Also for these, which Megatron accepts although its chunks then do not hold each layer exactly once:
  //   P = 1 with several stages, unless they are those of a hybrid pattern and V is given
  //   P = 1 with both a first and a last stage given
  //   a hybrid pattern with P = 2 whose given first and last stage leave layers out
  // Sources: get_num_layers_to_build and get_transformer_layer_offset; TransformerConfig.__post_init__;
  // PipelineParallelLayerLayout.validate_layer_layout; select_pipeline_segment.
  static absl::StatusOr<LayerTable> Create(const LayerSplit& split);

  int32_t num_layers() const { return num_layers_; }
  int32_t pipeline_size() const { return pipeline_size_; }
  int32_t virtual_stages() const { return virtual_stages_; }
  // Requires 0 <= pp_rank < pipeline_size() and 0 <= chunk < virtual_stages().
  LayerRange range(int32_t pp_rank, int32_t chunk) const { return ranges_[pp_rank * virtual_stages_ + chunk]; }

  const MtpPlacement& mtp() const { return mtp_; }
  // The number of MTP layers in this chunk.
  int32_t mtp_layers(int32_t pp_rank, int32_t chunk) const {
    return pp_rank == mtp_.pp_rank && chunk == mtp_.chunk ? mtp_.layers : 0;
  }

 private:
  LayerTable() = default;

  int32_t num_layers_ = 0;
  int32_t pipeline_size_ = 1;
  int32_t virtual_stages_ = 1;
  std::vector<LayerRange> ranges_;  // [p][v]
  MtpPlacement mtp_;
};

// A MoE layer of a rank, with its layer id and its index among the MoE layers.
struct OwnedLayer {
  int32_t layer_id = 0;  // Global decoder layer id.
  int32_t ordinal = 0;   // Index among all MoE layers of the geometry.
  int32_t chunk = 0;     // v
  friend bool operator==(const OwnedLayer&, const OwnedLayer&) = default;
};

// The MoE layers of one chunk, or of all chunks of the rank if `chunk` is not set; layer ids ascend. May be empty.
// INVALID_ARGUMENT (kField) if the table has another number of layers than the geometry, or if there is no such rank or
// chunk.
absl::StatusOr<std::vector<OwnedLayer>> OwnedMoeLayers(const Geometry& geometry, const LayerTable& table,
                                                       int32_t pp_rank, std::optional<int32_t> chunk = std::nullopt);

// Returns `layers` without the native layers, which the trainer routes live. Hash-routed layers, whose experts come
// from a table of token ids, are native in some trainers and replayed in others. Ordinals do not change.
// INVALID_ARGUMENT (kField, field "native_layers") for an id that is not a MoE layer of the geometry.
absl::StatusOr<std::vector<OwnedLayer>> WithoutNativeLayers(const Geometry& geometry, std::vector<OwnedLayer> layers,
                                                            absl::Span<const int32_t> native_layers);

// Layers found in the live model of a rank. Every Megatron-Core layer knows its layer_number
// (TransformerLayer.layer_number, TopKRouter.set_layer_number), which is global over pipeline ranks and chunks and
// starts at 1. The split is checked against these numbers.

// The routers found among the modules of one model chunk, in any order.
struct LiveChunk {
  std::vector<int32_t> layer_numbers;  // layer_number of each decoder router: global, from 1 on. Without MTP routers.
};

// Describes the first chunk (v = 0, 1, …) in which the model of pipeline rank `pp_rank` and the split differ, with the
// layers of both; nothing if they agree. Routers of `native_layers` are optional in the model. Each chunk is compared
// by itself, so the same layers in other chunks are a difference. Fails with the errors of OwnedMoeLayers.
absl::StatusOr<std::optional<std::string>> LiveDifference(const Geometry& geometry, const LayerTable& table,
                                                          int32_t pp_rank, absl::Span<const LiveChunk> chunks,
                                                          absl::Span<const int32_t> native_layers = {});

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_LAYERS_H_
