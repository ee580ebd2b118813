// The recorded layout of a case (`neutral`), and the padding policy that produces it.
#ifndef TESTS_GOLDEN_KINDS_NEUTRAL_LAYOUT_H_
#define TESTS_GOLDEN_KINDS_NEUTRAL_LAYOUT_H_

#include <string>

#include "routing_replay/trainer/padding.h"
#include "routing_replay/trainer/rows.h"
#include "tests/golden/kind.h"

namespace routing_replay::golden {

// Returns the recorded layout `neutral` with row order `order`, which is the order of Megatron's router or of the
// framework's rows.
trainer::MicroBatchLayout NeutralLayout(const Json& neutral, const Json& order);

// Returns `neutral` with valid values for its missing fields: if the framework raised an error, there is no complete
// recorded layout.
Json CompletedNeutral(const Json& neutral);

// The first number of `neutral` that contradicts the others or input.lengths; "" if there is none.
std::string NeutralContradiction(const Json& input);

// Whether the case states the framework and options that led to the layout.
bool HasPolicy(const Json& input);

// Returns the batch before padding, as the framework got it.
trainer::UnpaddedBatch BatchBefore(const Json& input);

// Compares the layout that our policy predicts from options and lengths with the recorded one. A case passes if it has
// no options; it passes "without their policy" if framework or options are unknown.
Outcome RunPolicy(const Json& input, const trainer::MicroBatchLayout& layout);

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_KINDS_NEUTRAL_LAYOUT_H_
