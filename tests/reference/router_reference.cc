#include "tests/reference/router_reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace routing_replay::testing {
namespace {

using trainer::RouterConfig;
using trainer::ScoreFunction;

std::vector<double> Softmax(const std::vector<double>& x) {
  const double max = *std::max_element(x.begin(), x.end());
  std::vector<double> out;
  for (double v : x) out.push_back(std::exp(v - max));
  const double sum = std::accumulate(out.begin(), out.end(), 0.0);
  for (double& v : out) v /= sum;
  return out;
}

std::vector<double> Scores(const RouterConfig& config, const std::vector<double>& x) {
  std::vector<double> out;
  for (double v : x) {
    out.push_back(config.score_function == ScoreFunction::kSigmoid ? 1 / (1 + std::exp(-v))
                                                                   : std::sqrt(std::log1p(std::exp(v))));
  }
  return out;
}

std::vector<double> Gather(const std::vector<double>& values, const std::vector<int>& ids) {
  std::vector<double> out;
  for (int id : ids) out.push_back(values[id]);
  return out;
}

// The `count` best of `candidates` by score, best first.
std::vector<int> Best(std::vector<int> candidates, const std::vector<double>& scores, int count) {
  std::stable_sort(candidates.begin(), candidates.end(), [&](int a, int b) { return scores[a] > scores[b]; });
  candidates.resize(count);
  return candidates;
}

std::vector<int> Iota(int begin, int count) {
  std::vector<int> out(count);
  std::iota(out.begin(), out.end(), begin);
  return out;
}

}  // namespace

std::vector<double> ReferenceProbs(const RouterConfig& config, const std::vector<double>& logits,
                                   const std::vector<int>& ids) {
  std::vector<double> q;
  if (config.pre_softmax) {
    q = Gather(Softmax(logits), ids);
  } else if (config.score_function == ScoreFunction::kSoftmax) {
    q = Softmax(Gather(logits, ids));
  } else {
    q = Gather(Scores(config, logits), ids);
    const double sum = std::accumulate(q.begin(), q.end(), 1e-20);
    for (double& v : q) v /= config.top_k > 1 ? sum : 1;
  }
  for (double& v : q) v *= config.scaling_factor == 0 ? 1 : config.scaling_factor;
  return q;
}

std::vector<double> ReferenceGradient(const RouterConfig& config, const std::vector<double>& logits,
                                      const std::vector<int>& ids, const std::vector<double>& grad_probs) {
  constexpr double kStep = 1e-5;
  const auto loss = [&](const std::vector<double>& x) {
    const std::vector<double> p = ReferenceProbs(config, x, ids), g = Gather(grad_probs, ids);
    return std::inner_product(p.begin(), p.end(), g.begin(), 0.0);
  };
  std::vector<double> gradient;
  for (size_t e = 0; e < logits.size(); ++e) {
    std::vector<double> up = logits, down = logits;
    up[e] += kStep;
    down[e] -= kStep;
    gradient.push_back((loss(up) - loss(down)) / (2 * kStep));
  }
  return gradient;
}

std::vector<int> ReferenceLiveChoice(const RouterConfig& config, const std::vector<double>& logits,
                                     const std::vector<double>& bias) {
  std::vector<double> scores = logits;
  if (config.pre_softmax) scores = Softmax(logits);
  if (config.score_function != ScoreFunction::kSoftmax) {
    scores = Scores(config, logits);
    for (size_t e = 0; e < bias.size(); ++e) scores[e] += bias[e];
  }
  const int group_size = config.num_experts / config.num_groups;
  std::vector<double> group_scores;
  for (int group = 0; group < config.num_groups; ++group) {
    double sum = 0;
    for (int e : Best(Iota(group * group_size, group_size), scores, config.top_k / config.group_topk)) sum += scores[e];
    group_scores.push_back(sum);
  }
  std::vector<int> candidates;
  std::vector<int> groups = Best(Iota(0, config.num_groups), group_scores, config.group_topk);
  std::sort(groups.begin(), groups.end());
  for (int group : groups) {
    for (int e : Iota(group * group_size, group_size)) candidates.push_back(e);
  }
  return Best(candidates, scores, config.top_k);
}

}  // namespace routing_replay::testing
