#include "routing_replay/trainer/layers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/stage_counts.h"

namespace routing_replay::trainer {
namespace {

absl::Status CheckRange(absl::string_view field, int32_t value, int32_t least) {
  if (value >= least && value <= kMaxLayers) return absl::OkStatus();
  return Invalid(field, absl::StrCat(value, " is not in ", least, " … ", kMaxLayers));
}

absl::Status CheckSizes(const LayerSplit& split) {
  absl::Status status = CheckRange("split.num_layers", split.num_layers, 1);
  status.Update(CheckRange("split.pipeline_size", split.pipeline_size, 1));
  status.Update(CheckRange("split.virtual_stages", split.virtual_stages.value_or(1), 1));
  status.Update(CheckRange("split.mtp_num_layers", split.mtp_num_layers, 0));
  return status;
}

// What is written out stage by stage leaves nothing to say about sizes.
absl::Status CheckBranches(const LayerSplit& split) {
  if (split.layout && split.hybrid) {
    return Invalid("split.layout", "a layout and a hybrid pattern both write the stages out: give one");
  }
  const absl::string_view written = split.layout ? "layout" : "hybrid_pattern";
  if (!split.layout && !split.hybrid) return absl::OkStatus();
  if (split.account_for_embedding || split.account_for_loss) {
    return Invalid(absl::StrCat("split.", written), "excludes account_for_embedding and account_for_loss");
  }
  const bool of_stages = split.layout || split.hybrid->stages.size() > 1;
  if (of_stages && (split.first_stage_layers || split.last_stage_layers)) {
    return Invalid(absl::StrCat("split.", written),
                   "writes every stage out, which excludes first_stage_layers and last_stage_layers");
  }
  return absl::OkStatus();
}

absl::StatusOr<StageCounts> CountsOf(const LayerSplit& split) {
  if (split.layout) return CountsOfLayout(split);
  if (split.hybrid) return CountsOfHybrid(split);
  return CountsOfSizes(split);
}

// Chunk v of rank p starts where all chunks before (v, p) end, v outer and p inner.
std::vector<LayerRange> PlaceStages(const std::vector<int32_t>& stages, int32_t pipeline_size) {
  const size_t chunks = stages.size() / pipeline_size;
  std::vector<LayerRange> ranges(stages.size());
  int32_t next = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    ranges[s % pipeline_size * chunks + s / pipeline_size] = {next, next + stages[s]};
    next += stages[s];
  }
  return ranges;
}

}  // namespace

absl::Status CheckStages(const LayerSplit& split, size_t stages, absl::string_view field) {
  if (stages % split.pipeline_size != 0) {
    return Invalid(field,
                   absl::StrCat(stages, " stages are not a multiple of ", split.pipeline_size, " pipeline ranks"));
  }
  const size_t chunks = stages / split.pipeline_size;
  if (split.virtual_stages && chunks != static_cast<size_t>(*split.virtual_stages)) {
    return Invalid("split.virtual_stages", absl::StrCat(*split.virtual_stages, ", but ", stages, " stages on ",
                                                        split.pipeline_size, " pipeline ranks make ", chunks));
  }
  return absl::OkStatus();
}

absl::Status CheckOneRank(const LayerSplit& split, size_t stages, absl::string_view field) {
  if (split.pipeline_size > 1 || stages == 1) return absl::OkStatus();
  return Invalid(field, absl::StrCat(stages,
                                     " stages with a pipeline of one rank: Megatron starts every chunk at layer 0, so "
                                     "virtual stages need at least two pipeline ranks"));
}

absl::StatusOr<LayerTable> LayerTable::Create(const LayerSplit& split) {
  if (absl::Status status = CheckSizes(split); !status.ok()) return status;
  if (absl::Status status = CheckBranches(split); !status.ok()) return status;
  const absl::StatusOr<StageCounts> counts = CountsOf(split);
  if (!counts.ok()) return counts.status();
  LayerTable table;
  table.num_layers_ = split.num_layers;
  table.pipeline_size_ = split.pipeline_size;
  table.virtual_stages_ = static_cast<int32_t>(counts->layers.size()) / split.pipeline_size;
  table.ranges_ = PlaceStages(counts->layers, split.pipeline_size);
  table.mtp_ = counts->mtp;
  return table;
}

std::optional<LayerPlace> LayerTable::FindPlace(int32_t layer_id) const {
  const auto range = std::find_if(ranges_.begin(), ranges_.end(), [&](LayerRange r) { return r.contains(layer_id); });
  if (range == ranges_.end()) return std::nullopt;
  const int32_t i = static_cast<int32_t>(range - ranges_.begin());
  return LayerPlace{.pp_rank = i / virtual_stages_, .chunk = i % virtual_stages_, .index = layer_id - range->begin};
}

std::optional<int32_t> LayerTable::FindLayer(const LayerPlace& place) const {
  if (place.pp_rank < 0 || place.pp_rank >= pipeline_size_ || place.chunk < 0 || place.chunk >= virtual_stages_) {
    return std::nullopt;
  }
  const LayerRange layers = range(place.pp_rank, place.chunk);
  if (place.index < 0 || place.index >= layers.size()) return std::nullopt;
  return layers.begin + place.index;
}

absl::StatusOr<std::vector<OwnedLayer>> OwnedMoeLayers(const Geometry& geometry, const LayerTable& table,
                                                       int32_t pp_rank, std::optional<int32_t> chunk) {
  if (geometry.num_layers() != table.num_layers()) {
    return Invalid("split.num_layers",
                   absl::StrCat(table.num_layers(), " layers are split, the geometry has ", geometry.num_layers()));
  }
  if (pp_rank < 0 || pp_rank >= table.pipeline_size()) {
    return Invalid("rank.pp", absl::StrCat(pp_rank, " is not in [0, ", table.pipeline_size(), ")"));
  }
  if (chunk && (*chunk < 0 || *chunk >= table.virtual_stages())) {
    return Invalid("rank.chunk", absl::StrCat(*chunk, " is not in [0, ", table.virtual_stages(), ")"));
  }
  std::vector<OwnedLayer> owned;
  for (int32_t v = chunk.value_or(0); v < (chunk ? *chunk + 1 : table.virtual_stages()); ++v) {
    const LayerRange range = table.range(pp_rank, v);
    for (int32_t layer = range.begin; layer < range.end; ++layer) {
      if (const auto ordinal = geometry.FindOrdinal(layer)) {
        owned.push_back({.layer_id = layer, .ordinal = *ordinal, .chunk = v});
      }
    }
  }
  return owned;
}

absl::StatusOr<std::vector<OwnedLayer>> WithoutNativeLayers(const Geometry& geometry, std::vector<OwnedLayer> layers,
                                                            absl::Span<const int32_t> native_layers) {
  for (const int32_t id : native_layers) {
    if (!geometry.FindOrdinal(id)) return Invalid("native_layers", absl::StrCat(id, " is no MoE layer"));
  }
  const auto is_native = [&](const OwnedLayer& layer) {
    return std::find(native_layers.begin(), native_layers.end(), layer.layer_id) != native_layers.end();
  };
  layers.erase(std::remove_if(layers.begin(), layers.end(), is_native), layers.end());
  return layers;
}

}  // namespace routing_replay::trainer
