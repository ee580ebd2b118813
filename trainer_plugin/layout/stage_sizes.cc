// Splits by sizes: even, with embedding and loss counted, with a given first or last stage.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/stage_counts.h"

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

}  // namespace routing_replay::trainer
