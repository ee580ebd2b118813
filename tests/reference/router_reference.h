// Router replay in double precision, written to be obvious: the reference of the router's tests.
#ifndef TESTS_REFERENCE_ROUTER_REFERENCE_H_
#define TESTS_REFERENCE_ROUTER_REFERENCE_H_

#include <vector>

#include "routing_replay/trainer/router_config.h"

namespace routing_replay::testing {

// Returns, for one row, the probabilities of the K experts in `ids`, in slot order.
std::vector<double> ReferenceProbs(const trainer::RouterConfig& config, const std::vector<double>& logits,
                                   const std::vector<int>& ids);

// The gradient of Σ_k grad_probs[ids[k]] · probs[k] with respect to each of the E logits, by central differences.
std::vector<double> ReferenceGradient(const trainer::RouterConfig& config, const std::vector<double>& logits,
                                      const std::vector<int>& ids, const std::vector<double>& grad_probs);

// Returns the ids of the experts that a live choice takes, best first; ties go to the lower id. `bias` is [E] or empty.
std::vector<int> ReferenceLiveChoice(const trainer::RouterConfig& config, const std::vector<double>& logits,
                                     const std::vector<double>& bias);

}  // namespace routing_replay::testing

#endif  // TESTS_REFERENCE_ROUTER_REFERENCE_H_
