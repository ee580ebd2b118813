// The recorded layout of a case (`neutral`), and the padding policy that produces it.
#ifndef TESTS_GOLDEN_KINDS_NEUTRAL_LAYOUT_H_
#define TESTS_GOLDEN_KINDS_NEUTRAL_LAYOUT_H_

#include <string>

#include "routing_replay/trainer/padding.h"
#include "routing_replay/trainer/rows.h"
#include "tests/golden/kind.h"

namespace routing_replay::golden {

// The layout with row order `order`, which is Megatron's or that of the framework.
trainer::MicroBatchLayout NeutralLayout(const Json& neutral, const Json& order);

// `neutral` with valid values for missing fields: there is no recorded layout if the framework raised.
Json CompletedNeutral(const Json& neutral);

// The first number of `neutral` that contradicts the others or input.lengths; "" if there is none.
std::string NeutralContradiction(const Json& input);

// Whether the case states the framework and options that led to the layout.
bool HasPolicy(const Json& input);

// The batch that the framework got.
trainer::UnpaddedBatch BatchBefore(const Json& input);

// Compares the layout that our policy predicts from options and lengths with the recorded one. A case passes if it has
// no options; it passes "without their policy" if framework or options are unknown, and "without a hazard" if the
// framework fails and our policy reports no hazard.
Outcome RunPolicy(const Json& input, const trainer::MicroBatchLayout& layout, bool framework_fails);

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_KINDS_NEUTRAL_LAYOUT_H_
