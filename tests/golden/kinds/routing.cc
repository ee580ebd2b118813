// routing_*: a router's probabilities, map and gradient for replayed and live choices.
#include <string>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/router.h"
#include "tests/golden/kind.h"
#include "tests/golden/kinds/router_case.h"
#include "tests/golden/kinds/router_path.h"

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
};

template <typename D>
RouterCase<D> Parse(const Json& input, trainer::Rounding rounding) {
  RouterCase<D> c;
  c.config = RouterOf(input, rounding);
  c.rows = input.at("num_tokens").get<int64_t>();
  c.logits = Matrix<D>(input.at("logits"));
  c.grad_probs = Matrix<D>(input.at("grad_probs"));
  if (!input.at("expert_bias").is_null()) c.bias = input["expert_bias"].get<std::vector<float>>();
  c.indices = CompactIds(c.config, input.at("replay_indices"));
  return c;
}

// The expected values and tolerances.
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
  if (!status.ok()) return Failed(absl::StrCat(expected.action, ": rejected: ", status.message()));
  const Json experts = Experts(c.config, map);
  // Results of Megatron-Core 0.17 have no routing_map.
  const auto their_map = expected.values.find("routing_map");
  if (their_map != expected.values.end() && experts != *their_map) {
    return Failed(absl::StrCat(expected.action, ": routing_map is ", experts.dump(), ", expected ", their_map->dump()));
  }
  if (state == RowState::kUnrecorded && Slots(c.config, chosen) != expected.values.at("recorded_indices")) {
    return Failed(absl::StrCat(expected.action, ": chosen ", Slots(c.config, chosen).dump(), ", expected ",
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
  // The case may also have results of Megatron-Core 0.17, which has no sqrtsoftplus. If it has none, the results of
  // 0.17 are those of the newer version.
  if (c.config.score_function == trainer::ScoreFunction::kSqrtSoftplus) return Passed();
  const auto stepped = Parse<D>(input, trainer::Rounding::kEachStep);
  const bool differs = golden_case.contains("expect_v0_17");
  const Json& values = differs ? golden_case["expect_v0_17"].at("replay") : expect.at("replay");
  return RunAction(stepped, expected("replay", differs ? "v0_17" : "replay", values));
}

Outcome RunRouting(const Json& golden_case) {
  const std::string dtype = golden_case.at("input").at("dtype").get<std::string>();
  if (dtype == "bfloat16") return RunInDtype<trainer::Bf16>(golden_case);
  return dtype == "float64" ? RunInDtype<double>(golden_case) : RunInDtype<float>(golden_case);
}

}  // namespace

Kind RoutingKind() {
  return {{"routing_softmax", "routing_sigmoid", "routing_sqrtsoftplus", "routing_bf16", "routing_fp64",
           "routing_edge_values"},
          RunRouting};
}

}  // namespace routing_replay::golden
