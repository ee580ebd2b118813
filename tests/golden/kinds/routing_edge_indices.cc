// routing_edge_indices: unusual index tensors. Megatron accepts some of them silently. We must reject every tensor that
// does not have K different experts for each of N rows, and give Megatron's result for the others.
#include <numeric>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/wire/payload/tensor_payload.h"
#include "routing_replay/trainer/router.h"
#include "tests/golden/kind.h"
#include "tests/golden/kinds/dtype_named.h"
#include "tests/golden/kinds/router_case.h"

namespace routing_replay::golden {
namespace {

using trainer::RouterConfig;

int64_t Width(DType dtype) {
  switch (dtype) {
    case DType::kU8:
    case DType::kI8:
      return 1;
    case DType::kU16:
    case DType::kI16:
      return 2;
    case DType::kI32:
      return 4;
    default:
      return 8;
  }
}

// Returns the ids as the bytes of a tensor of this dtype.
std::vector<uint8_t> Memory(const Json& rows, DType dtype) {
  std::vector<uint8_t> bytes;
  for (const Json& row : rows) {
    for (const Json& id : row) {
      const auto value = static_cast<uint64_t>(id.get<int64_t>());
      for (int64_t i = 0; i < Width(dtype); ++i) bytes.push_back(static_cast<uint8_t>(value >> (8 * i)));
    }
  }
  return bytes;
}

// Whether a router can replay the ids.
bool IsLegal(const Json& input, const RouterConfig& config) {
  if (input.at("index_shape") != Json{input.at("num_tokens"), config.top_k}) return false;
  for (const Json& row : input.value("replay_indices", Json::array())) {
    std::set<int64_t> experts;
    for (const Json& id : row) {
      const auto expert = id.get<int64_t>();
      if (expert < 0 || expert >= config.num_experts || !experts.insert(expert).second) return false;
    }
  }
  return DTypeNamed(input.at("index_dtype").get<std::string>()) != DType::kUnspecified;
}

// Checks the ids with our decoder, like every payload of routes.
absl::Status Check(const Json& input, const RouterConfig& config) {
  const DType dtype = DTypeNamed(input.at("index_dtype").get<std::string>());
  const auto rows = input.at("num_tokens").get<int64_t>();
  const auto& shape = input.at("index_shape");
  const TensorDescription tensor{.dtype = dtype, .shape = {shape.at(0).get<int64_t>(), 1, shape.at(1).get<int64_t>()}};
  if (rows == 0 && shape.at(0) == 0) return absl::OkStatus();  // Nothing to decode.
  return DecodeTensor(Geometry::Uniform(1, config.num_experts, config.top_k), tensor,
                      Memory(input.at("replay_indices"), dtype), {.expected_rows = rows})
      .status();
}

struct Replayed {
  std::vector<float> probs;
  std::vector<uint8_t> map, chosen;
};

absl::StatusOr<Replayed> Replay(const Json& input, const RouterConfig& config) {
  const std::vector<float> logits = Matrix<float>(input.value("logits", Json::array()));  // Empty if there are no rows.
  const std::vector<uint8_t> ids = CompactIds(config, input.value("replay_indices", Json::array()));
  const size_t rows = logits.size() / config.num_experts;
  Replayed out{std::vector<float>(logits.size()), std::vector<uint8_t>(logits.size()),
               std::vector<uint8_t>(ids.size())};
  const std::vector<trainer::RowState> states(rows, trainer::RowState::kReplayed);
  trainer::RouterCounters counters;
  absl::Status status = trainer::RouterReplayForward<float>(
      config, {.logits = logits, .indices = ids, .states = states, .expert_bias = {}},
      {absl::MakeSpan(out.probs), absl::MakeSpan(out.map), absl::MakeSpan(out.chosen)}, counters);
  if (!status.ok()) return status;
  return out;
}

Outcome Compare(const Json& golden_case, const RouterConfig& config, const Replayed& ours) {
  const Json& expect = golden_case.at("expect");
  const double tolerance = golden_case.contains("tol") ? golden_case["tol"].at("replay_probs").get<double>() : 1e-6;
  if (expect.contains("probs_shape")) {
    const Json shape = {ours.probs.size() / config.num_experts, config.num_experts};
    return shape == expect["probs_shape"] && shape == expect.at("map_shape") ? Passed() : Failed("another shape");
  }
  const Json& replay = expect.at("replay");
  std::string words = FirstDifference("probs", ours.probs, replay.at("probs"), tolerance);
  if (words.empty() && Experts(config, ours.map) != replay.at("routing_map")) words = "another routing_map";
  if (words.empty() && std::accumulate(ours.map.begin(), ours.map.end(), int64_t{0}) != replay.at("map_true_count")) {
    words = "another map_true_count";
  }
  if (words.empty() && expect.contains("dense_output")) {
    const Json& dense = expect["dense_output"];
    const Json slots = Slots(config, ours.chosen);
    std::vector<float> in_slots;
    for (size_t row = 0; row < slots.size(); ++row) {
      for (const Json& id : slots[row]) in_slots.push_back(ours.probs[row * config.num_experts + id.get<size_t>()]);
    }
    words = FirstDifference("dense probs", in_slots, dense.at("probs"), tolerance);
    if (words.empty() && slots != dense.at("top_indices")) words = "other top_indices";
  }
  return words.empty() ? Passed() : Failed(words);
}

Outcome RunEdgeIndices(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  const RouterConfig config = RouterOf(input, trainer::Rounding::kOnce);
  const absl::Status checked = Check(input, config);
  const bool legal = IsLegal(input, config);
  if (checked.ok() != legal) {
    return Failed(legal ? absl::StrCat("rejected: ", checked.message()) : "accepted, though it cannot be replayed");
  }
  const bool raises = !golden_case.at("expect").at("raises").is_null();
  if (!legal || raises) return Passed();  // Megatron requires int64; we accept any integer type.
  const auto ours = Replay(input, config);
  if (!ours.ok()) return Failed(std::string(ours.status().message()));
  return Compare(golden_case, config, *ours);
}

}  // namespace

Kind RoutingEdgeIndicesKind() { return {{"routing_edge_indices"}, RunEdgeIndices}; }

}  // namespace routing_replay::golden
