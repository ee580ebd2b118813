#include "routing_replay/trainer/layers.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/stages.h"

namespace routing_replay::trainer {
namespace {

// Layers of each pipeline rank, all its chunks together.
using RankLayers = std::vector<int32_t>;

// The embedding and the loss count as one layer each where asked.
absl::StatusOr<RankLayers> EvenLayers(const LayerSplit& split) {
  const int32_t extra = split.account_for_embedding + split.account_for_loss;
  const int32_t slots = split.num_layers + extra;
  auto layers = SpreadLayers(split, slots);
  if (layers) return *std::move(layers);
  return Invalid("split.num_layers",
                 absl::StrCat(split.num_layers, " layers + ", extra, " for embedding and loss = ", slots,
                              " are not a multiple of ", split.pipeline_size, " pipeline ranks"));
}

absl::Status CheckUneven(const LayerSplit& split) {
  if (split.account_for_embedding || split.account_for_loss) {
    return Invalid("split.first_stage_layers",
                   "a given first or last stage excludes account_for_embedding and account_for_loss");
  }
  if (split.first_stage_layers.value_or(1) < 1) {
    return Invalid("split.first_stage_layers", "a given stage holds at least one layer");
  }
  if (split.last_stage_layers.value_or(1) < 1) {
    return Invalid("split.last_stage_layers", "a given stage holds at least one layer");
  }
  if (!split.first_stage_layers || !split.last_stage_layers) return absl::OkStatus();
  if (split.pipeline_size == 1) {
    return Invalid("split.last_stage_layers", "a pipeline of one rank has no last stage beside its first");
  }
  if (split.pipeline_size == 2 && split.virtual_stages.value_or(1) > 1) {
    return Invalid("split.virtual_stages",
                   "with two pipeline ranks, both given, Megatron cannot place virtual stages (no middle stage)");
  }
  return absl::OkStatus();
}

absl::StatusOr<RankLayers> UnevenLayers(const LayerSplit& split) {
  if (absl::Status status = CheckUneven(split); !status.ok()) return status;
  auto layers = SpreadLayers(split, split.num_layers);
  if (layers && *std::min_element(layers->begin(), layers->end()) > 0) return *std::move(layers);
  const int64_t given = int64_t{split.first_stage_layers.value_or(0)} + split.last_stage_layers.value_or(0);
  const int32_t others =
      split.pipeline_size - split.first_stage_layers.has_value() - split.last_stage_layers.has_value();
  return Invalid("split.num_layers", absl::StrCat(split.num_layers, " layers less ", given,
                                                  " of the given stages do not split evenly over ", others,
                                                  " other stages with at least one each"));
}

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

absl::Status InvalidNumber(int32_t chunk, int32_t number, absl::string_view what) {
  return Invalid("rank.model", absl::StrCat("chunk ", chunk, " has a router of layer_number ", number, ", ", what));
}

std::vector<int32_t> IdsOfChunk(absl::Span<const OwnedLayer> layers, int32_t chunk) {
  std::vector<int32_t> ids;
  for (const OwnedLayer& layer : layers) {
    if (layer.chunk == chunk) ids.push_back(layer.layer_id);
  }
  return ids;
}

std::string LayerAt(const std::vector<int32_t>& ids, size_t i) {
  if (i >= ids.size()) return "none";
  return absl::StrCat("decoder layer ", ids[i], " (layer_number ", ids[i] + 1, ")");
}

// Both ascend.
std::optional<std::string> DifferenceOfIds(const std::vector<int32_t>& model, const std::vector<int32_t>& split) {
  const auto at = std::mismatch(model.begin(), model.end(), split.begin(), split.end());
  if (at.first == model.end() && at.second == split.end()) return std::nullopt;
  const size_t i = at.first - model.begin();
  return absl::StrCat("router ", i, " of ", model.size(), " is ", LayerAt(model, i), ", the split gives ",
                      LayerAt(split, i), ", ", split.size(), " in all");
}

std::optional<std::string> DifferenceOfMtp(const LiveChunk& model, int32_t layers) {
  const size_t routers = model.mtp_layer_numbers.size();
  if (routers <= static_cast<size_t>(layers)) return std::nullopt;
  return absl::StrCat(routers, " routers of MTP layers, the split gives ", layers, " MTP layers");
}

}  // namespace

std::optional<std::vector<int32_t>> SpreadLayers(const LayerSplit& split, int32_t layers) {
  const int64_t first = split.first_stage_layers.value_or(0), last = split.last_stage_layers.value_or(0);
  const int64_t others =
      int64_t{split.pipeline_size} - split.first_stage_layers.has_value() - split.last_stage_layers.has_value();
  const int64_t rest = layers - first - last;
  if (first < 0 || last < 0 || rest < 0 || others < 0) return std::nullopt;
  if (others == 0 ? rest != 0 : rest % others != 0) return std::nullopt;
  std::vector<int32_t> ranks(split.pipeline_size, others == 0 ? 0 : static_cast<int32_t>(rest / others));
  if (split.first_stage_layers) ranks.front() = *split.first_stage_layers;
  if (split.last_stage_layers) ranks.back() = *split.last_stage_layers;
  return ranks;
}

absl::StatusOr<StageCounts> CountsOfSizes(const LayerSplit& split) {
  const int32_t chunks = split.virtual_stages.value_or(1);
  if (absl::Status status =
          CheckOneRank(split, static_cast<size_t>(split.pipeline_size) * chunks, "split.virtual_stages");
      !status.ok()) {
    return status;
  }
  const bool uneven = split.first_stage_layers || split.last_stage_layers;
  const absl::StatusOr<RankLayers> ranks = uneven ? UnevenLayers(split) : EvenLayers(split);
  if (!ranks.ok()) return ranks.status();
  StageCounts counts{.mtp = MtpBehindLastStage(split, chunks)};
  for (int32_t p = 0; p < split.pipeline_size; ++p) {
    if ((*ranks)[p] % chunks == 0) continue;
    return Invalid("split.virtual_stages", absl::StrCat("the ", (*ranks)[p], " layers of pipeline rank ", p,
                                                        " are not a multiple of ", chunks, " virtual stages"));
  }
  for (int32_t v = 0; v < chunks; ++v) {
    for (const int32_t layers : *ranks) counts.layers.push_back(layers / chunks);
  }
  counts.layers.front() -= split.account_for_embedding;
  counts.layers.back() -= split.account_for_loss;
  return counts;
}

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

absl::StatusOr<std::vector<OwnedLayer>> OwnedMoeLayers(const Geometry& geometry, absl::Span<const LiveChunk> chunks) {
  std::vector<OwnedLayer> owned;
  std::set<int32_t> seen;
  for (size_t v = 0; v < chunks.size(); ++v) {
    const int32_t chunk = static_cast<int32_t>(v);
    for (const int32_t number : chunks[v].layer_numbers) {
      if (number < 1 || number > geometry.num_layers()) {
        return InvalidNumber(chunk, number, absl::StrCat("the model has layers 1 … ", geometry.num_layers()));
      }
      const auto ordinal = geometry.FindOrdinal(number - 1);
      if (!ordinal) return InvalidNumber(chunk, number, "which is no MoE layer: does it belong to MTP?");
      if (!seen.insert(number).second) return InvalidNumber(chunk, number, "which is there twice");
      owned.push_back({.layer_id = number - 1, .ordinal = *ordinal, .chunk = chunk});
    }
  }
  std::sort(owned.begin(), owned.end(),
            [](const OwnedLayer& a, const OwnedLayer& b) { return a.layer_id < b.layer_id; });
  return owned;
}

absl::StatusOr<std::optional<std::string>> LiveDifference(const Geometry& geometry, const LayerTable& table,
                                                          int32_t pp_rank, absl::Span<const LiveChunk> chunks,
                                                          absl::Span<const int32_t> native_layers) {
  auto split = OwnedMoeLayers(geometry, table, pp_rank);
  if (split.ok()) split = WithoutNativeLayers(geometry, *std::move(split), native_layers);
  if (!split.ok()) return split.status();
  auto model = OwnedMoeLayers(geometry, chunks);
  if (model.ok()) model = WithoutNativeLayers(geometry, *std::move(model), native_layers);
  if (!model.ok()) return model.status();
  const std::string rank = absl::StrCat("pipeline rank ", pp_rank);
  if (chunks.size() != static_cast<size_t>(table.virtual_stages())) {
    return absl::StrCat(rank, ": the model has ", chunks.size(), " chunks, the split gives ", table.virtual_stages());
  }
  for (int32_t v = 0; v < table.virtual_stages(); ++v) {
    auto difference = DifferenceOfIds(IdsOfChunk(*model, v), IdsOfChunk(*split, v));
    if (!difference) difference = DifferenceOfMtp(chunks[v], table.mtp_layers(pp_rank, v));
    if (difference) return absl::StrCat(rank, ", chunk ", v, ": ", *difference);
  }
  return std::nullopt;
}

}  // namespace routing_replay::trainer
