// routing_*: probabilities, map and gradient of a router, its choice replayed or live.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/router.h"
#include "tests/golden/kind.h"
#include "tests/golden/kinds/split_of.h"
#include "trainer_plugin/replay/compact_id.h"

namespace routing_replay::golden {
namespace {

using trainer::RouterConfig;
using trainer::RowState;

// One case's tensors in memory.
struct RouterCase {
  RouterConfig config;
  int64_t rows = 0;
  std::vector<float> logits, grad_probs, bias;
  std::vector<uint8_t> indices;

  int32_t id_bytes() const { return config.num_experts <= 256 ? 1 : 2; }
};

std::vector<float> Matrix(const Json& json) {
  std::vector<float> values;
  for (const Json& row : json) {
    for (const Json& value : row) values.push_back(value.get<float>());
  }
  return values;
}

RouterCase Parse(const Json& input) {
  RouterCase c;
  const std::string score = input.at("score_function").get<std::string>();
  c.config = {.score_function = score == "softmax"   ? trainer::ScoreFunction::kSoftmax
                                : score == "sigmoid" ? trainer::ScoreFunction::kSigmoid
                                                     : trainer::ScoreFunction::kSqrtSoftplus,
              .pre_softmax = input.at("use_pre_softmax").get<bool>(),
              .num_experts = input.at("num_experts").get<int32_t>(),
              .top_k = input.at("topk").get<int32_t>(),
              .num_groups = IntOr(input.at("num_groups"), 1),
              .group_topk = IntOr(input.at("group_topk"), 1)};
  if (!input.at("scaling_factor").is_null()) c.config.scaling_factor = input["scaling_factor"].get<float>();
  c.rows = input.at("num_tokens").get<int64_t>();
  c.logits = Matrix(input.at("logits"));
  c.grad_probs = Matrix(input.at("grad_probs"));
  if (!input.at("expert_bias").is_null()) c.bias = input["expert_bias"].get<std::vector<float>>();
  c.indices.resize(c.rows * c.config.top_k * c.id_bytes());
  int64_t slot = 0;
  for (const Json& row : input.at("replay_indices")) {
    for (const Json& id : row) trainer::StoreId(c.indices.data(), c.id_bytes(), slot++, id.get<uint32_t>());
  }
  return c;
}

// Names the first entry that is further away than `tolerance`; empty if there is none.
std::string FirstDifference(const char* what, const std::vector<float>& ours, const Json& expected, double tolerance) {
  const std::vector<float> theirs = Matrix(expected);
  if (ours.size() != theirs.size()) return absl::StrCat(what, " has ", ours.size(), " entries, not ", theirs.size());
  const size_t columns = expected.at(0).size();
  for (size_t i = 0; i < ours.size(); ++i) {
    if (std::abs(double{ours[i]} - theirs[i]) <= tolerance) continue;
    return absl::StrCat(what, "[", i / columns, "][", i % columns, "] is ", ours[i], ", expected ", theirs[i],
                        " within ", tolerance);
  }
  return "";
}

// Per row the ascending experts of the map.
Json Experts(const std::vector<uint8_t>& map, int64_t rows, int32_t experts) {
  Json lists = Json::array();
  for (int64_t row = 0; row < rows; ++row) {
    Json& list = lists.emplace_back(Json::array());
    for (int32_t e = 0; e < experts; ++e) {
      if (map[row * experts + e]) list.push_back(e);
    }
  }
  return lists;
}

Json Slots(const RouterCase& c, const std::vector<uint8_t>& chosen) {
  Json lists = Json::array();
  for (int64_t row = 0; row < c.rows; ++row) {
    Json& list = lists.emplace_back(Json::array());
    for (int32_t k = 0; k < c.config.top_k; ++k) {
      list.push_back(trainer::LoadId(chosen.data(), c.id_bytes(), row * c.config.top_k + k));
    }
  }
  return lists;
}

Outcome RunAction(const RouterCase& c, const Json& golden_case, const std::string& action) {
  const Json& expect = golden_case.at("expect").at(action);
  const Json& tolerances = golden_case.at("tol");
  const RowState state = action == "live" ? RowState::kUnrecorded : RowState::kReplayed;
  const std::vector<RowState> states(c.rows, state);
  std::vector<float> probs(c.logits.size()), grad(c.logits.size());
  std::vector<uint8_t> map(c.logits.size()), chosen(c.indices.size());
  trainer::RouterCounters counters;
  absl::Status status = trainer::RouterReplayForward(
      c.config, {.logits = c.logits, .indices = c.indices, .states = states, .expert_bias = c.bias},
      {.probs = absl::MakeSpan(probs), .routing_map = absl::MakeSpan(map), .chosen = absl::MakeSpan(chosen)}, counters);
  if (status.ok()) {
    status = trainer::RouterReplayBackward(c.config, {.logits = c.logits, .chosen = chosen, .grad_probs = c.grad_probs},
                                           absl::MakeSpan(grad), counters);
  }
  if (!status.ok()) return Failed(absl::StrCat(action, ": refused: ", status.message()));
  const Json experts = Experts(map, c.rows, c.config.num_experts);
  if (experts != expect.at("routing_map")) {
    return Failed(
        absl::StrCat(action, ": routing_map is ", experts.dump(), ", expected ", expect["routing_map"].dump()));
  }
  if (state == RowState::kUnrecorded && Slots(c, chosen) != expect.at("recorded_indices")) {
    return Failed(
        absl::StrCat(action, ": chosen ", Slots(c, chosen).dump(), ", expected ", expect["recorded_indices"].dump()));
  }
  const auto tolerance = [&](const char* name) { return tolerances.at(action + name).get<double>(); };
  std::string words = FirstDifference("probs", probs, expect.at("probs"), tolerance("_probs"));
  if (words.empty()) words = FirstDifference("grad_logits", grad, expect.at("grad_logits"), tolerance("_grad"));
  return words.empty() ? Passed() : Failed(absl::StrCat(action, ": ", words));
}

Outcome Run(const Json& golden_case) {
  const RouterCase c = Parse(golden_case.at("input"));
  const Outcome replay = RunAction(c, golden_case, "replay");
  return replay.verdict == Outcome::Verdict::kPassed ? RunAction(c, golden_case, "live") : replay;
}

}  // namespace

Kind RoutingKind() { return {{"routing_softmax", "routing_sigmoid", "routing_sqrtsoftplus"}, Run}; }

}  // namespace routing_replay::golden
