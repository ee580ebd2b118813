// Router replay in double precision, written to be obvious: the reference of the router's tests.
#ifndef TESTS_REFERENCE_ROUTER_REFERENCE_H_
#define TESTS_REFERENCE_ROUTER_REFERENCE_H_

#include <vector>

#include "routing_replay/trainer/router_config.h"

namespace routing_replay::testing {

// One row: the K probabilities of `ids`, in slot order.
std::vector<double> ReferenceProbs(const trainer::RouterConfig& config, const std::vector<double>& logits,
                                   const std::vector<int>& ids);

// The gradient of Σ_k grad_probs[ids[k]] · probs[k] with respect to each of the E logits, by central differences.
std::vector<double> ReferenceGradient(const trainer::RouterConfig& config, const std::vector<double>& logits,
                                      const std::vector<int>& ids, const std::vector<double>& grad_probs);

// The ids of a live choice, best first; ties go to the lower id. `bias` is [E] or empty.
std::vector<int> ReferenceLiveChoice(const trainer::RouterConfig& config, const std::vector<double>& logits,
                                     const std::vector<double>& bias);

}  // namespace routing_replay::testing

#endif  // TESTS_REFERENCE_ROUTER_REFERENCE_H_
