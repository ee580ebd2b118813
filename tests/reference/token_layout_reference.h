// Slow and obvious reference for the token that each router row shows, computed one token at a time. Shares no code
// with the code under test except the types that describe a micro-batch.
#ifndef TESTS_REFERENCE_TOKEN_LAYOUT_REFERENCE_H_
#define TESTS_REFERENCE_TOKEN_LAYOUT_REFERENCE_H_

#include <vector>

#include "routing_replay/trainer/row_map.h"
#include "routing_replay/trainer/rows.h"

namespace routing_replay::reference {

// The rows at the router of rank (cp_rank, tp_rank), in order. `layout` must be valid and not explicit.
std::vector<trainer::LocalRow> LocalRows(const trainer::MicroBatchLayout& layout, int64_t cp_rank, int64_t tp_rank);

}  // namespace routing_replay::reference

#endif  // TESTS_REFERENCE_TOKEN_LAYOUT_REFERENCE_H_
