#include "routing_replay/trainer/layers.h"

#include "absl/strings/str_cat.h"
#include "trainer_plugin/layout/invalid.h"

namespace routing_replay::trainer {
namespace {

// n[p][v], row-major.
using Counts = std::vector<int32_t>;

absl::Status CheckSizes(const LayerSplit& split) {
  if (split.num_layers < 1 || split.num_layers > kMaxLayers) {
    return Invalid("split.num_layers", absl::StrCat(split.num_layers, " is not in 1 … ", kMaxLayers));
  }
  if (split.pipeline_size < 1 || split.pipeline_size > kMaxLayers) {
    return Invalid("split.pipeline_size", absl::StrCat(split.pipeline_size, " is not in 1 … ", kMaxLayers));
  }
  if (split.virtual_stages < 1 || split.virtual_stages > kMaxLayers) {
    return Invalid("split.virtual_stages", absl::StrCat(split.virtual_stages, " is not in 1 … ", kMaxLayers));
  }
  if (split.pipeline_size == 1 && split.virtual_stages > 1) {
    return Invalid("split.virtual_stages",
                   absl::StrCat(split.virtual_stages,
                                " with a pipeline of one rank: every chunk would start at layer 0, "
                                "so virtual stages need at least two pipeline ranks"));
  }
  return absl::OkStatus();
}

// The layers of one stage, split evenly over its chunks.
absl::Status FillStage(const LayerSplit& split, int32_t pp_rank, int32_t layers, Counts& counts) {
  const int32_t chunks = split.virtual_stages;
  if (layers % chunks != 0) {
    return Invalid("split.virtual_stages", absl::StrCat("the ", layers, " layers of pipeline rank ", pp_rank,
                                                        " are not a multiple of ", chunks, " virtual stages"));
  }
  for (int32_t v = 0; v < chunks; ++v) counts[pp_rank * chunks + v] = layers / chunks;
  return absl::OkStatus();
}

// The embedding and the loss count as one layer each where asked, on the first and the last chunk.
absl::StatusOr<Counts> EvenCounts(const LayerSplit& split) {
  const int32_t extra = split.account_for_embedding + split.account_for_loss;
  const int32_t slots = split.num_layers + extra;
  if (slots % split.pipeline_size != 0) {
    return Invalid("split.num_layers",
                   absl::StrCat(split.num_layers, " layers + ", extra, " for embedding and loss = ", slots,
                                " are not a multiple of ", split.pipeline_size, " pipeline ranks"));
  }
  Counts counts(static_cast<size_t>(split.pipeline_size) * split.virtual_stages);
  for (int32_t p = 0; p < split.pipeline_size; ++p) {
    if (absl::Status status = FillStage(split, p, slots / split.pipeline_size, counts); !status.ok()) return status;
  }
  counts.front() -= split.account_for_embedding;
  counts.back() -= split.account_for_loss;
  return counts;
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
  if (split.pipeline_size == 2 && split.virtual_stages > 1) {
    return Invalid("split.virtual_stages",
                   "with two pipeline ranks, both given, Megatron cannot place virtual stages (no middle stage)");
  }
  return absl::OkStatus();
}

absl::StatusOr<Counts> UnevenCounts(const LayerSplit& split) {
  if (absl::Status status = CheckUneven(split); !status.ok()) return status;
  const int64_t given = int64_t{split.first_stage_layers.value_or(0)} + split.last_stage_layers.value_or(0);
  const int32_t middle =
      split.pipeline_size - split.first_stage_layers.has_value() - split.last_stage_layers.has_value();
  const int64_t rest = split.num_layers - given;
  if (middle == 0 ? rest != 0 : rest < middle || rest % middle != 0) {
    return Invalid("split.num_layers", absl::StrCat(split.num_layers, " layers less ", given,
                                                    " of the given stages do not split evenly over ", middle,
                                                    " other stages with at least one each"));
  }
  Counts counts(static_cast<size_t>(split.pipeline_size) * split.virtual_stages);
  for (int32_t p = 0; p < split.pipeline_size; ++p) {
    int32_t layers = middle == 0 ? 0 : static_cast<int32_t>(rest / middle);
    if (p == 0) layers = split.first_stage_layers.value_or(layers);
    if (p == split.pipeline_size - 1) layers = split.last_stage_layers.value_or(layers);
    if (absl::Status status = FillStage(split, p, layers, counts); !status.ok()) return status;
  }
  return counts;
}

// Chunk v of rank p starts where all chunks before (v, p) end, v outer and p inner.
std::vector<LayerRange> PlaceChunks(const Counts& counts, int32_t pipeline_size, int32_t virtual_stages) {
  std::vector<LayerRange> ranges(counts.size());
  int32_t next = 0;
  for (int32_t v = 0; v < virtual_stages; ++v) {
    for (int32_t p = 0; p < pipeline_size; ++p) {
      const size_t i = static_cast<size_t>(p) * virtual_stages + v;
      ranges[i] = {next, next + counts[i]};
      next += counts[i];
    }
  }
  return ranges;
}

}  // namespace

absl::StatusOr<LayerTable> LayerTable::Create(const LayerSplit& split) {
  if (absl::Status status = CheckSizes(split); !status.ok()) return status;
  const bool uneven = split.first_stage_layers || split.last_stage_layers;
  const absl::StatusOr<Counts> counts = uneven ? UnevenCounts(split) : EvenCounts(split);
  if (!counts.ok()) return counts.status();
  LayerTable table;
  table.num_layers_ = split.num_layers;
  table.pipeline_size_ = split.pipeline_size;
  table.virtual_stages_ = split.virtual_stages;
  table.ranges_ = PlaceChunks(*counts, split.pipeline_size, split.virtual_stages);
  return table;
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

}  // namespace routing_replay::trainer
