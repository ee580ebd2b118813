#include "routing_replay/trainer/hybrid_pattern.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/wire/model_config/moe_layers.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/stage_counts.h"

namespace routing_replay::trainer {
namespace {

constexpr const char* kField = "split.hybrid_pattern";

absl::Status InvalidPattern(absl::string_view what) { return Invalid(kField, what); }

// Which layers carry routes, of the decoder or of one MTP depth.
absl::StatusOr<std::vector<bool>> CheckSymbols(absl::string_view symbols) {
  const bool latent = absl::StrContains(symbols, 'D') || absl::StrContains(symbols, '+');
  if (absl::StrContains(symbols, '*') && latent) {
    return InvalidPattern("has \"*\" beside \"D\" or \"+\": a model has one kind of attention");
  }
  return HybridMoeFlags(symbols, kField);
}

absl::Status ReadMtp(const std::vector<std::string>& depths, HybridPattern& pattern) {
  if (std::all_of(depths.begin(), depths.end(), [](const std::string& depth) { return depth.empty(); })) {
    return absl::OkStatus();
  }
  pattern.mtp = depths.front();
  pattern.mtp_depths = static_cast<int32_t>(depths.size());
  for (const std::string& depth : depths) {
    if (depth == pattern.mtp) continue;
    return InvalidPattern(absl::StrCat("MTP depths differ: \"", pattern.mtp, "\" and \"", depth, "\""));
  }
  if (absl::StrContains(pattern.mtp, '|')) return InvalidPattern("\"|\" in a MTP depth: all of MTP is in one stage");
  return CheckSymbols(pattern.mtp).status();
}

// As select_pipeline_segment without "|".
absl::StatusOr<std::vector<int32_t>> SpreadStages(const LayerSplit& split) {
  auto stages = SpreadLayers(split, split.num_layers);
  if (stages) return *std::move(stages);
  if (!split.first_stage_layers && !split.last_stage_layers) {
    return InvalidPattern(absl::StrCat(split.num_layers, " layers without \"|\" are not a multiple of ",
                                       split.pipeline_size, " pipeline ranks"));
  }
  return InvalidPattern(absl::StrCat(split.num_layers, " layers less ", split.first_stage_layers.value_or(0), " and ",
                                     split.last_stage_layers.value_or(0),
                                     " of the given stages do not split evenly over the other stages: layers would be "
                                     "in no stage or in two"));
}

absl::StatusOr<std::vector<int32_t>> StagesOf(const LayerSplit& split) {
  const std::vector<std::string>& written = split.hybrid->stages;
  if (written.size() == 1 && split.pipeline_size > 1) {
    if (split.virtual_stages.value_or(1) > 1) {
      return InvalidPattern("without \"|\" there are no virtual stages: write all stages out");
    }
    return SpreadStages(split);
  }
  absl::Status status = CheckStages(split, written.size(), kField);
  // Told of its chunks, a single rank builds them one behind the other; else it builds the first one alone.
  if (!split.virtual_stages) status.Update(CheckOneRank(split, written.size(), kField));
  if (!status.ok()) return status;
  if (split.first_stage_layers || split.last_stage_layers) return SpreadStages(split);
  std::vector<int32_t> stages;
  stages.reserve(written.size());
  for (const std::string& stage : written) stages.push_back(static_cast<int32_t>(stage.size()));
  return stages;
}

}  // namespace

int32_t HybridPattern::num_layers() const { return static_cast<int32_t>(absl::StrJoin(stages, "").size()); }

int32_t HybridPattern::Count(char symbol) const {
  const std::string decoder = absl::StrJoin(stages, "");
  return static_cast<int32_t>(std::count(decoder.begin(), decoder.end(), symbol) +
                              mtp_depths * std::count(mtp.begin(), mtp.end(), symbol));
}

absl::StatusOr<HybridPattern> ParseHybridPattern(absl::string_view text) {
  std::vector<std::string> parts = absl::StrSplit(text, '/');
  const auto moe = CheckSymbols(parts.front());
  if (!moe.ok()) return moe.status();
  HybridPattern pattern{.stages = absl::StrSplit(parts.front(), '|')};
  for (size_t i = 0; i < moe->size(); ++i) {
    if ((*moe)[i]) pattern.moe_layer_ids.push_back(static_cast<int32_t>(i));
  }
  parts.erase(parts.begin());
  if (absl::Status status = ReadMtp(parts, pattern); !status.ok()) return status;
  return pattern;
}

absl::StatusOr<StageCounts> CountsOfHybrid(const LayerSplit& split) {
  const HybridPattern& hybrid = *split.hybrid;
  if (split.num_layers != hybrid.num_layers()) {
    return InvalidPattern(
        absl::StrCat("has ", hybrid.num_layers(), " symbols in its decoder, not num_layers = ", split.num_layers));
  }
  if (split.mtp_num_layers != 0 && hybrid.mtp_depths != 0 && split.mtp_num_layers != hybrid.mtp_depths) {
    return InvalidPattern(
        absl::StrCat("has ", hybrid.mtp_depths, " MTP depths, not mtp_num_layers = ", split.mtp_num_layers));
  }
  absl::StatusOr<std::vector<int32_t>> stages = StagesOf(split);
  if (!stages.ok()) return stages.status();
  const int32_t chunks = static_cast<int32_t>(stages->size()) / split.pipeline_size;
  StageCounts counts{.layers = *std::move(stages), .mtp = MtpBehindLastStage(split, chunks)};
  if (hybrid.mtp_depths != 0) counts.mtp.layers = hybrid.mtp_depths;
  return counts;
}

}  // namespace routing_replay::trainer
