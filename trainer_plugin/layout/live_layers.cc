#include "routing_replay/trainer/live_layers.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::trainer {
namespace {

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
