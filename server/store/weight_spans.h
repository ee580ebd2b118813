// The list of weight spans of a sample: covers [0, committed rows), neighbours differ.
#ifndef SERVER_STORE_WEIGHT_SPANS_H_
#define SERVER_STORE_WEIGHT_SPANS_H_

#include <cstdint>
#include <vector>

#include "routing_replay/wire/sample_state.h"

namespace routing_replay {

// Adds `span`, which starts where the list ends; grows the last span instead if version and label are the same. No
// effect if empty.
void AppendSpan(std::vector<WeightSpan>& spans, WeightSpan span);

// Keeps rows [0, rows).
void TruncateSpans(std::vector<WeightSpan>& spans, int64_t rows);

}  // namespace routing_replay

#endif  // SERVER_STORE_WEIGHT_SPANS_H_
