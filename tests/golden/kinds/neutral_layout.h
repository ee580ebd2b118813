// The layout of a case as it was observed (`neutral`), and the padding policy that leads to it.
#ifndef TESTS_GOLDEN_KINDS_NEUTRAL_LAYOUT_H_
#define TESTS_GOLDEN_KINDS_NEUTRAL_LAYOUT_H_

#include <string>

#include "routing_replay/trainer/padding.h"
#include "routing_replay/trainer/rows.h"
#include "tests/golden/kind.h"

namespace routing_replay::golden {

// In the row order `order`: Megatron's, or, where the case has it, that of the framework.
trainer::MicroBatchLayout NeutralLayout(const Json& neutral, const Json& order);

// `neutral` with valid values for all that it leaves open: a framework that raised was not seen to make a layout.
Json CompletedNeutral(const Json& neutral);

// Which number of `neutral` is at odds with the others, or with input.lengths; "" if they agree.
std::string NeutralContradiction(const Json& input);

// Whether the case says how its framework came to the layout.
bool HasPolicy(const Json& input);

// What the framework was given.
trainer::UnpaddedBatch BatchBefore(const Json& input);

// From options and lengths to the layout that the framework was seen to make. A case without options passes, one of
// another framework or with options that the project does not know passes without its policy, one whose framework fails
// without a hazard if the policy reports none.
Outcome RunPolicy(const Json& input, const trainer::MicroBatchLayout& layout, bool framework_fails);

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_KINDS_NEUTRAL_LAYOUT_H_
