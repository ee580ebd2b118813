// Statistics of routes, as papers and traces report them. Slow and simple.
#ifndef TESTS_GENERATOR_STATISTICS_H_
#define TESTS_GENERATOR_STATISTICS_H_

#include <cstdint>

#include "absl/types/span.h"
#include "tests/generator/routes.h"

namespace routing_replay::testing {

// Entropy of the expert choices of one layer over all sequences, with the Miller–Madow correction, divided by log2 E.
double LayerEntropy(absl::Span<const Routes> sequences, int32_t layer);
// Mean of LayerEntropy over layers. Requires at least one sequence, all of the same shape.
double MeanEntropy(absl::Span<const Routes> sequences);

// Mean over layers and rows t of |S(t) ∩ S(t + lag)| / K, S(t) being the set chosen at row t of the same sequence.
double LagOverlap(absl::Span<const Routes> sequences, int64_t lag);

}  // namespace routing_replay::testing

#endif  // TESTS_GENERATOR_STATISTICS_H_
