#include "tests/quickstart/rank_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "routing_replay/trainer/router.h"
#include "tests/generator/prng.h"

namespace routing_replay::quickstart {
namespace {

using trainer::BufferLayout;
using trainer::RowState;

// Id number `index` of an array of compact ids.
uint16_t CompactId(absl::Span<const uint8_t> ids, int32_t id_bytes, int64_t index) {
  uint16_t id = ids[index * id_bytes];
  if (id_bytes == 2) std::memcpy(&id, &ids[index * 2], sizeof(id));
  return id;
}

absl::Status Difference(const BufferLayout& layout, int64_t row, int32_t slot, absl::string_view what) {
  return absl::InternalError(
      absl::StrCat("local row ", row, ", layer ", layout.layer(slot).layer_id, ": ", what, " differ"));
}

absl::Span<const uint16_t> ExpectedIds(const BufferLayout& layout, const ExpectedRow& row, int32_t slot) {
  const int32_t top_k = layout.layer(slot).top_k;
  return row.ids.subspan(static_cast<size_t>(layout.ordinal(slot)) * top_k, top_k);
}

// The k highest logits, found by sorting all of them.
std::set<int32_t> HighestLogits(absl::Span<const float> logits, int32_t k) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  return {order.begin(), order.begin() + k};
}

std::set<int32_t> MappedExperts(absl::Span<const uint8_t> map) {
  std::set<int32_t> experts;
  for (size_t expert = 0; expert < map.size(); ++expert) {
    if (map[expert] != 0) experts.insert(static_cast<int32_t>(expert));
  }
  return experts;
}

// True if `probs` is the softmax over the logits of `experts` and 0 elsewhere.
bool ProbabilitiesFit(absl::Span<const float> logits, absl::Span<const float> probs, const std::set<int32_t>& experts) {
  double sum = 0;
  for (const int32_t expert : experts) sum += std::exp(static_cast<double>(logits[expert]));
  for (size_t expert = 0; expert < probs.size(); ++expert) {
    const bool routed = experts.contains(static_cast<int32_t>(expert));
    const double wanted = routed ? std::exp(static_cast<double>(logits[expert])) / sum : 0;
    if (std::abs(probs[expert] - wanted) > 1e-5) return false;
  }
  return true;
}

absl::Status CheckRouterLayer(const InjectedRows& rows, absl::Span<const ExpectedRow> expected, int32_t slot,
                              uint64_t seed) {
  const LayerRouting& layer = rows.layout.layer(slot);
  const size_t experts = layer.num_experts;
  testing::Prng prng(seed);
  std::vector<float> logits(expected.size() * experts), probs(logits.size());
  for (float& logit : logits) logit = static_cast<float>(prng.Normal());
  std::vector<uint8_t> map(logits.size());
  trainer::RouterCounters counters;
  absl::Status status = trainer::RouterReplayForward(
      {.num_experts = layer.num_experts, .top_k = layer.top_k},
      {.logits = logits, .indices = rows.layout.slab(rows.indices, slot), .states = rows.states},
      {.probs = absl::MakeSpan(probs), .routing_map = absl::MakeSpan(map)}, counters);
  if (!status.ok()) return status;
  for (size_t row = 0; row < expected.size(); ++row) {
    const auto row_logits = absl::MakeConstSpan(logits).subspan(row * experts, experts);
    const std::set<int32_t> mapped = MappedExperts(absl::MakeConstSpan(map).subspan(row * experts, experts));
    std::set<int32_t> wanted = mapped;
    if (expected[row].state == RowState::kReplayed) {
      const auto ids = ExpectedIds(rows.layout, expected[row], slot);
      wanted = {ids.begin(), ids.end()};
    } else if (expected[row].state == RowState::kUnrecorded) {
      wanted = HighestLogits(row_logits, layer.top_k);
    }
    if (mapped != wanted || mapped.size() != static_cast<size_t>(layer.top_k)) {
      return Difference(rows.layout, static_cast<int64_t>(row), slot, "the routing map's experts");
    }
    if (!ProbabilitiesFit(row_logits, absl::MakeConstSpan(probs).subspan(row * experts, experts), mapped)) {
      return Difference(rows.layout, static_cast<int64_t>(row), slot, "the probabilities");
    }
  }
  return absl::OkStatus();
}

void CountRow(RowState state, RankResult& result) {
  switch (state) {
    case RowState::kReplayed:
      ++result.replayed_rows;
      break;
    case RowState::kUnrecorded:
    case RowState::kLive:  // Only sequences without a sample, which the quick start does not have.
      ++result.unrecorded_rows;
      break;
    case RowState::kPad:
      ++result.pad_rows;
      break;
  }
}

}  // namespace

absl::Status CheckLayers(const BufferLayout& layout, absl::Span<const int32_t> expected_ordinals) {
  std::vector<int32_t> ordinals;
  for (int32_t slot = 0; slot < layout.num_layers(); ++slot) ordinals.push_back(layout.ordinal(slot));
  if (absl::MakeConstSpan(ordinals) == expected_ordinals) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the rank holds MoE layers ", absl::StrJoin(ordinals, " "), ", expected ",
                                          absl::StrJoin(expected_ordinals, " ")));
}

absl::Status CheckIndices(const InjectedRows& rows, absl::Span<const ExpectedRow> expected, RankResult& result) {
  if (rows.states.size() != expected.size()) {
    return absl::InternalError(absl::StrCat(rows.states.size(), " local rows, expected ", expected.size()));
  }
  for (size_t row = 0; row < expected.size(); ++row) {
    if (rows.states[row] != expected[row].state) {
      return absl::InternalError(absl::StrCat("local row ", row, ": state ", static_cast<int>(rows.states[row]),
                                              ", expected ", static_cast<int>(expected[row].state)));
    }
    CountRow(expected[row].state, result);
  }
  for (int32_t slot = 0; slot < rows.layout.num_layers(); ++slot) {
    const LayerRouting& layer = rows.layout.layer(slot);
    const absl::Span<const uint8_t> slab = rows.layout.slab(rows.indices, slot);
    for (size_t row = 0; row < expected.size(); ++row) {
      if (expected[row].state != RowState::kReplayed) continue;
      const absl::Span<const uint16_t> ids = ExpectedIds(rows.layout, expected[row], slot);
      for (int32_t k = 0; k < layer.top_k; ++k) {
        if (CompactId(slab, layer.id_bytes(), static_cast<int64_t>(row) * layer.top_k + k) != ids[k]) {
          return Difference(rows.layout, static_cast<int64_t>(row), slot, "the ids");
        }
      }
      result.compared_ids += layer.top_k;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRouter(const InjectedRows& rows, absl::Span<const ExpectedRow> expected, uint64_t seed,
                         RankResult& result) {
  const int32_t layers = rows.layout.num_layers();
  for (const int32_t slot : std::set<int32_t>{0, layers / 2, layers - 1}) {
    absl::Status status = CheckRouterLayer(rows, expected, slot, testing::DeriveSeed(seed, slot));
    if (!status.ok()) return status;
    result.router_rows += static_cast<int64_t>(expected.size());
  }
  return absl::OkStatus();
}

}  // namespace routing_replay::quickstart
