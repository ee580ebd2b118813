// Slow and obvious: where each decoder layer is, by the closed forms of each kind of split. Shares no code with what it
// checks.
#ifndef TESTS_REFERENCE_LAYER_LAYOUT_REFERENCE_H_
#define TESTS_REFERENCE_LAYER_LAYOUT_REFERENCE_H_

#include <vector>

#include "routing_replay/trainer/layers.h"

namespace routing_replay::reference {

// First layer of chunk v of pipeline rank p. `split` must be valid. With account_for_*, V must be 1.
int32_t FirstLayer(const trainer::LayerSplit& split, int32_t p, int32_t v);

}  // namespace routing_replay::reference

#endif  // TESTS_REFERENCE_LAYER_LAYOUT_REFERENCE_H_
