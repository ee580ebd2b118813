#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer_plugin/layout/diagnosis/mistakes.h"

namespace routing_replay::trainer {
namespace {

std::vector<int32_t> IdsOf(const std::vector<OwnedLayer>& owned) {
  std::vector<int32_t> ids;
  ids.reserve(owned.size());
  for (const OwnedLayer& layer : owned) ids.push_back(layer.layer_id);
  return ids;
}

// Collects what leads elsewhere. Layers of a mistake come in any number and are cut to the rank's, or followed by -1.
class LayerCatalogue {
 public:
  LayerCatalogue(const Geometry& geometry, const std::vector<OwnedLayer>& right) : geometry_(geometry) {
    const char* what = "the layers that this rank has";
    ways_.push_back({{"none"}, what, {"none", what}, IdsOf(right)});
  }

  void Add(const std::string& mistake, const std::string& what, std::vector<int32_t> layers) {
    Add(mistake, what, {mistake, absl::StrCat("the model's layers fit the record as if: ", what)}, std::move(layers));
  }

  void Add(const std::string& mistake, const std::string& what, const Mistake& reversed, std::vector<int32_t> layers) {
    layers.resize(right().size(), -1);
    const auto known =
        std::find_if(ways_.begin(), ways_.end(), [&](const LayerWay& way) { return way.layers == layers; });
    if (known == ways_.end()) {
      ways_.push_back({{mistake}, what, reversed, std::move(layers)});
    } else if (known != ways_.begin()) {
      known->mistakes.push_back(mistake);
    }
  }

  // The layers of the right way, each replaced.
  void AddEach(const Mistake& mistake, const Mistake& reversed, const std::function<int32_t(int32_t layer)>& change) {
    std::vector<int32_t> layers = right();
    for (int32_t& layer : layers) layer = change(layer);
    Add(mistake.name, mistake.what, reversed, std::move(layers));
  }

  // The layers that the rank has under another split, where that is one.
  void AddSplit(const std::string& mistake, const std::string& what, const LayerSplit& split, const PlanRank& rank) {
    const absl::StatusOr<LayerTable> table = LayerTable::Create(split);
    if (!table.ok()) return;
    const std::optional<int32_t> chunk = table->virtual_stages() == 1 ? std::nullopt : rank.chunk;
    const auto owned = OwnedMoeLayers(geometry_, *table, std::min(rank.pp_rank, split.pipeline_size - 1), chunk);
    if (owned.ok()) Add(mistake, what, IdsOf(*owned));
  }

  const std::vector<int32_t>& right() const { return ways_.front().layers; }
  std::vector<LayerWay> Take() { return std::move(ways_); }

 private:
  const Geometry& geometry_;
  std::vector<LayerWay> ways_;
};

// MoE layers of decoder layers begin, …, end - 1.
std::vector<int32_t> MoeLayersIn(const Geometry& geometry, LayerRange range) {
  std::vector<int32_t> ids;
  for (int32_t layer = range.begin; layer < range.end; ++layer) {
    if (geometry.FindOrdinal(layer)) ids.push_back(layer);
  }
  return ids;
}

// The chunks of a rank taken for neighbours: p outer and v inner.
std::vector<int32_t> ChunksSideBySide(const Geometry& geometry, const LayerTable& table, int32_t pp_rank,
                                      std::optional<int32_t> chunk) {
  LayerRange range;
  for (int32_t p = 0; p <= pp_rank; ++p) {
    for (int32_t v = 0; v < table.virtual_stages(); ++v) {
      if (p < pp_rank || (chunk && v < *chunk)) range.begin += table.range(p, v).size();
      if (p < pp_rank || !chunk || v <= *chunk) range.end += table.range(p, v).size();
    }
  }
  return MoeLayersIn(geometry, range);
}

Mistake LayerNumber() {
  return {"layer_number_as_index", "Megatron's layer_number, which counts from 1, was used as the index"};
}
Mistake LayerBefore() { return {"one_layer_before", "each layer got the routes of the layer before it"}; }
Mistake MoeOrdinal() {
  return {"moe_ordinal_as_layer",
          "routers were counted and the count used as a decoder layer: dense layers are missing in it"};
}
Mistake DecoderLayer() {
  return {"layer_as_moe_ordinal",
          "the decoder layer was used as an index of MoE layers: dense layers are counted in it"};
}
Mistake LastColumns() { return {"last_columns", "of all layers' columns the last ones were kept, one per MoE layer"}; }
Mistake FirstColumns() {
  return {"first_columns", "of all layers' columns the first ones were kept, one per MoE layer"};
}

void AddNumberings(const Geometry& geometry, const std::vector<OwnedLayer>& right, LayerCatalogue& catalogue) {
  catalogue.AddEach(LayerNumber(), LayerBefore(), [](int32_t layer) { return layer + 1; });
  catalogue.AddEach(MoeOrdinal(), DecoderLayer(), [&](int32_t layer) { return *geometry.FindOrdinal(layer); });
  std::vector<int32_t> ids;
  for (const LayerRouting& layer : geometry.layers()) ids.push_back(layer.layer_id);
  catalogue.AddEach(DecoderLayer(), MoeOrdinal(),
                    [&](int32_t layer) { return layer < static_cast<int32_t>(ids.size()) ? ids[layer] : -1; });
  const int32_t dense = geometry.num_layers() - static_cast<int32_t>(ids.size());
  catalogue.AddEach(LastColumns(), FirstColumns(), [&](int32_t layer) { return *geometry.FindOrdinal(layer) + dense; });
  std::vector<int32_t> local, local_decoder;
  for (size_t i = 0; i < right.size(); ++i) {
    local.push_back(i < ids.size() ? ids[i] : -1);
    local_decoder.push_back(static_cast<int32_t>(i));
  }
  catalogue.Add("no_pipeline_offset",
                "MoE layers were counted from the stage's first one: every stage got those of the first",
                std::move(local));
  catalogue.Add("construction_order",
                "routers were numbered as they were built, and the number used as a decoder layer",
                std::move(local_decoder));
  std::vector<int32_t> offset;
  for (size_t i = 0; i < right.size(); ++i) offset.push_back(right.front().layer_id + static_cast<int32_t>(i));
  catalogue.Add("dense_layers_counted", "MoE layers were taken for neighbours, from the stage's first one on",
                std::move(offset));
  catalogue.AddEach(LayerBefore(), LayerNumber(), [](int32_t layer) { return layer - 1; });
}

void AddSplits(const Geometry& geometry, const LayerTable& table, const LayerSplit& split, const PlanRank& rank,
               LayerCatalogue& catalogue) {
  const int32_t pp_rank = rank.pp_rank;
  const std::optional<int32_t> chunk = rank.chunk;
  if (table.virtual_stages() > 1) {
    catalogue.Add("chunks_side_by_side", "virtual stages were ignored: the chunks of a rank were taken for neighbours",
                  ChunksSideBySide(geometry, table, pp_rank, chunk));
    catalogue.Add("first_chunk_only", "every chunk got the layers of the rank's first one",
                  MoeLayersIn(geometry, table.range(pp_rank, 0)));
  }
  catalogue.AddSplit(
      "even_split", "the stages were taken for equal",
      {.num_layers = split.num_layers, .pipeline_size = split.pipeline_size, .virtual_stages = table.virtual_stages()},
      rank);
  LayerSplit decoder_alone = split;
  decoder_alone.account_for_embedding = decoder_alone.account_for_loss = false;
  catalogue.AddSplit("embedding_and_loss_ignored", "embedding and loss were not counted in the split", decoder_alone,
                     rank);
  for (int32_t p = 0; p < split.pipeline_size; ++p) {
    if (p == pp_rank) continue;
    std::vector<int32_t> layers;
    for (int32_t v = chunk.value_or(0); v < (chunk ? *chunk + 1 : table.virtual_stages()); ++v) {
      const std::vector<int32_t> more = MoeLayersIn(geometry, table.range(p, v));
      layers.insert(layers.end(), more.begin(), more.end());
    }
    catalogue.Add(absl::StrCat("layers_of_pp_rank_", p),
                  absl::StrCat("these are the layers of pipeline rank ", p,
                               ": with a layout Megatron's functions answer for the rank that calls them"),
                  std::move(layers));
  }
}

}  // namespace

absl::StatusOr<std::vector<LayerWay>> LayerWays(const Geometry& geometry, const LayerSplit& split,
                                                const PlanRank& rank) {
  const absl::StatusOr<LayerTable> table = LayerTable::Create(split);
  if (!table.ok()) return table.status();
  auto right = OwnedMoeLayers(geometry, *table, rank.pp_rank, rank.chunk);
  if (right.ok()) right = WithoutNativeLayers(geometry, *std::move(right), rank.native_layers);
  if (!right.ok()) return right.status();
  LayerCatalogue catalogue(geometry, *right);
  AddNumberings(geometry, *right, catalogue);
  AddSplits(geometry, *table, split, rank, catalogue);
  return catalogue.Take();
}

std::vector<LayerWay> LayerWays(const Geometry& geometry, const std::vector<OwnedLayer>& layers) {
  LayerCatalogue catalogue(geometry, layers);
  AddNumberings(geometry, layers, catalogue);
  return catalogue.Take();
}

}  // namespace routing_replay::trainer
