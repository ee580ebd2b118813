// routing_*: probabilities, map and gradient of a router, its choice replayed or live.
#include <cmath>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/router.h"
#include "tests/golden/kind.h"
#include "tests/golden/kinds/router_path.h"
#include "tests/golden/kinds/split_of.h"
#include "trainer_plugin/replay/compact_id.h"

namespace routing_replay::golden {
namespace {

using trainer::RouterConfig;
using trainer::RowState;

// One case's tensors in memory, of dtype D.
template <typename D>
struct RouterCase {
  RouterConfig config;
  int64_t rows = 0;
  std::vector<D> logits, grad_probs;
  std::vector<float> bias;
  std::vector<uint8_t> indices;

  int32_t id_bytes() const { return config.num_experts <= 256 ? 1 : 2; }
};

// A number, or one of the strings "nan", "inf", "-inf".
double Number(const Json& json) { return json.is_string() ? std::stod(json.get<std::string>()) : json.get<double>(); }

template <typename D>
std::vector<D> Matrix(const Json& json) {
  std::vector<D> values;
  for (const Json& row : json) {
    for (const Json& value : row) {
      if constexpr (std::is_same_v<D, double>) {
        values.push_back(Number(value));
      } else {
        values.push_back(D(static_cast<float>(Number(value))));
      }
    }
  }
  return values;
}

double ToDouble(double value) { return value; }
double ToDouble(float value) { return value; }
double ToDouble(trainer::Bf16 value) { return static_cast<float>(value); }

template <typename D>
RouterCase<D> Parse(const Json& input, trainer::Rounding rounding) {
  RouterCase<D> c;
  const std::string score = input.at("score_function").get<std::string>();
  c.config = {.score_function = score == "softmax"   ? trainer::ScoreFunction::kSoftmax
                                : score == "sigmoid" ? trainer::ScoreFunction::kSigmoid
                                                     : trainer::ScoreFunction::kSqrtSoftplus,
              .pre_softmax = input.at("use_pre_softmax").get<bool>(),
              .num_experts = input.at("num_experts").get<int32_t>(),
              .top_k = input.at("topk").get<int32_t>(),
              .rounding = rounding,
              .num_groups = IntOr(input.at("num_groups"), 1),
              .group_topk = IntOr(input.at("group_topk"), 1)};
  if (!input.at("scaling_factor").is_null()) c.config.scaling_factor = input["scaling_factor"].get<double>();
  c.rows = input.at("num_tokens").get<int64_t>();
  c.logits = Matrix<D>(input.at("logits"));
  c.grad_probs = Matrix<D>(input.at("grad_probs"));
  if (!input.at("expert_bias").is_null()) c.bias = input["expert_bias"].get<std::vector<float>>();
  c.indices.resize(c.rows * c.config.top_k * c.id_bytes());
  int64_t slot = 0;
  for (const Json& row : input.at("replay_indices")) {
    for (const Json& id : row) trainer::StoreId(c.indices.data(), c.id_bytes(), slot++, id.get<uint32_t>());
  }
  return c;
}

// Names the first entry that is further away than `tolerance`; empty if there is none. Where Megatron itself has no
// number, ours must be one.
template <typename D>
std::string FirstDifference(const char* what, const std::vector<D>& ours, const Json& expected, double tolerance) {
  const std::vector<double> theirs = Matrix<double>(expected);
  if (ours.size() != theirs.size()) return absl::StrCat(what, " has ", ours.size(), " entries, not ", theirs.size());
  const size_t columns = expected.at(0).size();
  for (size_t i = 0; i < ours.size(); ++i) {
    const double value = ToDouble(ours[i]);
    if (std::isfinite(theirs[i]) ? std::abs(value - theirs[i]) <= tolerance : std::isfinite(value)) continue;
    return absl::StrCat(what, "[", i / columns, "][", i % columns, "] is ", value, ", expected ", theirs[i], " within ",
                        tolerance);
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

template <typename D>
Json Slots(const RouterCase<D>& c, const std::vector<uint8_t>& chosen) {
  Json lists = Json::array();
  for (int64_t row = 0; row < c.rows; ++row) {
    Json& list = lists.emplace_back(Json::array());
    for (int32_t k = 0; k < c.config.top_k; ++k) {
      list.push_back(trainer::LoadId(chosen.data(), c.id_bytes(), row * c.config.top_k + k));
    }
  }
  return lists;
}

// What to compare with, and how closely.
struct Expected {
  std::string action;  // "replay", "live"
  const Json& values;
  double probs_tolerance = 0;
  double grad_tolerance = 0;
};

template <typename D>
Outcome RunAction(const RouterCase<D>& c, const Expected& expected) {
  const RowState state = expected.action == "live" ? RowState::kUnrecorded : RowState::kReplayed;
  const std::vector<RowState> states(c.rows, state);
  std::vector<D> probs(c.logits.size()), grad(c.logits.size());
  std::vector<uint8_t> map(c.logits.size()), chosen(c.indices.size());
  trainer::RouterCounters counters;
  absl::Status status = RouterPath<D>::forward(
      c.config, {.logits = c.logits, .indices = c.indices, .states = states, .expert_bias = c.bias},
      {.probs = absl::MakeSpan(probs), .routing_map = absl::MakeSpan(map), .chosen = absl::MakeSpan(chosen)}, counters);
  if (status.ok()) {
    status = RouterPath<D>::backward(c.config, {.logits = c.logits, .chosen = chosen, .grad_probs = c.grad_probs},
                                     absl::MakeSpan(grad), counters);
  }
  if (!status.ok()) return Failed(absl::StrCat(expected.action, ": refused: ", status.message()));
  const Json experts = Experts(map, c.rows, c.config.num_experts);
  // The older version's results leave out the map, which is that of the indices.
  const auto their_map = expected.values.find("routing_map");
  if (their_map != expected.values.end() && experts != *their_map) {
    return Failed(absl::StrCat(expected.action, ": routing_map is ", experts.dump(), ", expected ", their_map->dump()));
  }
  if (state == RowState::kUnrecorded && Slots(c, chosen) != expected.values.at("recorded_indices")) {
    return Failed(absl::StrCat(expected.action, ": chosen ", Slots(c, chosen).dump(), ", expected ",
                               expected.values["recorded_indices"].dump()));
  }
  std::string words = FirstDifference("probs", probs, expected.values.at("probs"), expected.probs_tolerance);
  if (words.empty()) {
    words = FirstDifference("grad_logits", grad, expected.values.at("grad_logits"), expected.grad_tolerance);
  }
  return words.empty() ? Passed() : Failed(absl::StrCat(expected.action, ": ", words));
}

template <typename D>
Outcome RunInDtype(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  const Json& expect = golden_case.at("expect");
  const Json& tolerances = golden_case.at("tol");
  const auto expected = [&](const char* action, const char* name, const Json& values) {
    return Expected{action, values, tolerances.at(absl::StrCat(name, "_probs")).get<double>(),
                    tolerances.at(absl::StrCat(name, "_grad")).get<double>()};
  };
  const auto c = Parse<D>(input, trainer::Rounding::kOnce);
  for (const char* action : {"replay", "live"}) {
    if (!expect.contains(action)) continue;
    const Outcome outcome = RunAction(c, expected(action, action, expect[action]));
    if (outcome.verdict != Outcome::Verdict::kPassed) return outcome;
  }
  // Megatron-Core 0.17 has no sqrtsoftplus; where nothing else is said of it, it gives the same.
  if (c.config.score_function == trainer::ScoreFunction::kSqrtSoftplus) return Passed();
  const auto stepped = Parse<D>(input, trainer::Rounding::kEachStep);
  const bool differs = golden_case.contains("expect_v0_17");
  const Json& values = differs ? golden_case["expect_v0_17"].at("replay") : expect.at("replay");
  return RunAction(stepped, expected("replay", differs ? "v0_17" : "replay", values));
}

Outcome Run(const Json& golden_case) {
  const std::string dtype = golden_case.at("input").at("dtype").get<std::string>();
  if (dtype == "bfloat16") return RunInDtype<trainer::Bf16>(golden_case);
  return dtype == "float64" ? RunInDtype<double>(golden_case) : RunInDtype<float>(golden_case);
}

}  // namespace

Kind RoutingKind() {
  return {{"routing_softmax", "routing_sigmoid", "routing_sqrtsoftplus", "routing_bf16", "routing_fp64",
           "routing_edge_values"},
          Run};
}

}  // namespace routing_replay::golden
