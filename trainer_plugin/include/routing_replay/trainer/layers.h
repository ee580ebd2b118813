// Which decoder layers, and so which MoE layers, a pipeline rank owns.
//
// The rule is Megatron-Core's (get_num_layers_to_build, get_transformer_layer_offset), written for all ranks at once: a
// table of counts n[p][v], and offset[p][v] = the sum of n over all chunks before (v, p) with v outer and p inner.
// Megatron's own functions only return the values of the calling rank.
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

// For the text of a layout with its repeats written out: far above what a model needs.
inline constexpr size_t kMaxLayoutText = size_t{1} << 16;

// Stage s = v·P + p is chunk v of pipeline rank p. One character per entry, of the four above; a stage may be empty.
// LayerTable::Create checks which orders and counts make a model.
struct PipelineLayout {
  std::vector<std::string> stages;
  friend bool operator==(const PipelineLayout&, const PipelineLayout&) = default;
};

// From the text form (PipelineParallelLayerLayout.parse_str_to_list), such as "Et*3|(tt|)*29m|L": stages between "|";
// x*n is n times the character x, (…)*n n times the group, which may hold "|" and no other group; commas mean nothing.
// Groups are written out before single characters, each left to right and once. n may be 0.
// INVALID_ARGUMENT (kField, field "split.layout") for everything else, quoting what was not understood.
absl::StatusOr<PipelineLayout> ParsePipelineLayout(absl::string_view text);

// From the list form: per stage the names embedding, decoder, mtp, loss, in any case, spaces around them ignored.
// INVALID_ARGUMENT as above, for encoder (which Megatron names and does not support) and all other names.
absl::StatusOr<PipelineLayout> PipelineLayoutFromNames(const std::vector<std::vector<std::string>>& stages);

// Hybrid patterns: one symbol per layer of a model that mixes Mamba, attention and MoE layers, as Megatron-Core's
// hybrid_layer_pattern (formerly hybrid_override_pattern) writes them (parse_hybrid_pattern).

struct HybridPattern {
  // The symbols between "|", one string if there is none: stage s = v·P + p is chunk v of pipeline rank p. Every symbol
  // (M G * D + - E) is a decoder layer, and layer ids count all of them; those of E carry routes.
  std::vector<std::string> stages;
  std::vector<int32_t> moe_layer_ids;  // Layers with the symbol E, ascending.
  std::string mtp;                     // The symbols of one MTP depth; empty without MTP.
  int32_t mtp_depths = 0;              // Number of MTP depths.

  int32_t num_layers() const;
  friend bool operator==(const HybridPattern&, const HybridPattern&) = default;
};

// "M*ME|MEME/*E/*E": the decoder, and behind each "/" one MTP depth, all alike. INVALID_ARGUMENT (kField, field
// "split.hybrid_pattern") for an unknown symbol, for "|" in a MTP depth, for depths that differ, and for "*" beside
// "D" or "+": a model has one kind of attention.
absl::StatusOr<HybridPattern> ParseHybridPattern(absl::string_view text);

// Decoder layers begin, …, end - 1 (global 0-based ids, dense ones counted). May be empty.
struct LayerRange {
  int32_t begin = 0;
  int32_t end = 0;

  constexpr int32_t size() const { return end - begin; }
  constexpr bool empty() const { return begin >= end; }
  constexpr bool contains(int32_t layer) const { return begin <= layer && layer < end; }
  friend constexpr bool operator==(LayerRange a, LayerRange b) { return a.begin == b.begin && a.end == b.end; }
};

// How the decoder is split; names in parentheses are Megatron's. At most one of these may be used: a given first or
// last stage, account_for_…, layout, hybrid. With hybrid, a first or last stage may be given if its pattern has no "|".
struct LayerSplit {
  int32_t num_layers = 0;                     // L (num_layers)
  int32_t pipeline_size = 1;                  // P (pipeline_model_parallel_size)
  std::optional<int32_t> virtual_stages;      // V, model chunks per rank (virtual_pipeline_model_parallel_size). Not
                                              // If not set: what layout or hybrid say, else 1.
  std::optional<int32_t> first_stage_layers;  // (num_layers_in_first_pipeline_stage)
  std::optional<int32_t> last_stage_layers;   // (num_layers_in_last_pipeline_stage)
  bool account_for_embedding = false;         // (account_for_embedding_in_pipeline_split)
  bool account_for_loss = false;              // (account_for_loss_in_pipeline_split)
  std::optional<PipelineLayout> layout;       // (pipeline_model_parallel_layout)
  std::optional<HybridPattern> hybrid;        // (hybrid_layer_pattern)
  int32_t mtp_num_layers = 0;                 // (mtp_num_layers)
};

// Where the multi-token-prediction layers are: all of them in one chunk. They have no routes of a rollout and are in no
// LayerRange: their layer_number starts at 1 again, so a number alone always means a decoder layer.
struct MtpPlacement {
  int32_t layers = 0;
  int32_t pp_rank = 0;
  int32_t chunk = 0;
  friend bool operator==(const MtpPlacement&, const MtpPlacement&) = default;
};

// The decoder layers of every chunk v of every pipeline rank p. Each layer is in exactly one chunk; within a rank the
// chunks ascend. Immutable, thread-safe.
class LayerTable {
 public:
  // INVALID_ARGUMENT (kField, field "split.…") with a message that states the broken rule: for every split that
  // Megatron rejects, and for those that it accepts although its chunks then do not hold each layer once. Those are P =
  // 1 with several stages (except a hybrid pattern with V given) or with both a first and a last stage, and a hybrid
  // pattern whose given first and last stage of P = 2 leave layers out. Sources: get_num_layers_to_build and
  // get_transformer_layer_offset; TransformerConfig.__post_init__; PipelineParallelLayerLayout.validate_layer_layout;
  // select_pipeline_segment.
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

 private:
  LayerTable() = default;

  int32_t num_layers_ = 0;
  int32_t pipeline_size_ = 1;
  int32_t virtual_stages_ = 1;
  std::vector<LayerRange> ranges_;  // [p][v]
  MtpPlacement mtp_;
};

// A MoE layer of a rank, with both of its numbers.
struct OwnedLayer {
  int32_t layer_id = 0;  // Global decoder layer id.
  int32_t ordinal = 0;   // Index among MoE layers.
  int32_t chunk = 0;     // v
  friend bool operator==(const OwnedLayer&, const OwnedLayer&) = default;
};

// The MoE layers of one chunk, or of all chunks of the rank if `chunk` is not set; layer ids ascend. May be empty.
// INVALID_ARGUMENT (kField) if the table has another number of layers than the geometry, or if there is no such rank or
// chunk.
absl::StatusOr<std::vector<OwnedLayer>> OwnedMoeLayers(const Geometry& geometry, const LayerTable& table,
                                                       int32_t pp_rank, std::optional<int32_t> chunk = std::nullopt);

// `layers` without those that the trainer routes live. Hash-routed layers take their ids from a table of token ids;
// some trainers hook them, others leave them native. Ordinals stay. INVALID_ARGUMENT (kField, field "native_layers")
// for an id that is not a MoE layer of the geometry.
absl::StatusOr<std::vector<OwnedLayer>> WithoutNativeLayers(const Geometry& geometry, std::vector<OwnedLayer> layers,
                                                            absl::Span<const int32_t> native_layers);

// The layers of a rank as its live model names them. Every Megatron-Core layer knows its layer_number
// (TransformerLayer.layer_number, TopKRouter.set_layer_number; global over pipeline ranks and chunks, from 1 on). A
// description of the split is checked against these numbers; without a description they are used instead.

// The routers of one model chunk, found by a walk over its modules, in any order.
struct LiveChunk {
  std::vector<int32_t> layer_numbers;      // Of layers in the decoder: global, from 1 on.
  std::vector<int32_t> mtp_layer_numbers;  // Of layers in the MTP block: from 1 on again, never looked up.
};

// The MoE layers of a rank with these chunks (v = 0, 1, …); layer ids ascend. INVALID_ARGUMENT (kField, field
// "rank.model", layer) for a layer_number that no MoE layer of the geometry has, or that occurs twice: so look MTP
// layers, or a second copy of the decoder, if they are taken for the decoder's layers.
absl::StatusOr<std::vector<OwnedLayer>> OwnedMoeLayers(const Geometry& geometry, absl::Span<const LiveChunk> chunks);

// The first difference between the model of pipeline rank `pp_rank` and the split, in words with both sides; nothing if
// they agree. Routers of `native_layers` may exist or not. Chunks are compared one by one: the same layers in other
// chunks count as different. Of MTP layers only the number is compared; they may have no router (a dense MTP layer has
// none). Errors as OwnedMoeLayers.
absl::StatusOr<std::optional<std::string>> LiveDifference(const Geometry& geometry, const LayerTable& table,
                                                          int32_t pp_rank, absl::Span<const LiveChunk> chunks,
                                                          absl::Span<const int32_t> native_layers = {});

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_LAYERS_H_
