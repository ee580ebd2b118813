// What each local row of a rank must show, and for which layers, computed only from the slow reference and the
// generator.
#ifndef TESTS_QUICKSTART_EXPECTED_ROWS_H_
#define TESTS_QUICKSTART_EXPECTED_ROWS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "routing_replay/trainer/rows.h"
#include "routing_replay/wire/row_range.h"
#include "tests/generator/routes.h"
#include "tests/quickstart/rank_check.h"

namespace routing_replay::quickstart {

// One sequence of a micro-batch: the routes that its engine chose, and the rows that were lost.
struct TrueSequence {
  const testing::Routes& routes;
  absl::Span<const RowRange> unrecorded;
};

// One entry per local row of the rank. The spans point into the routes.
std::vector<ExpectedRow> ExpectedRows(const trainer::MicroBatchLayout& layout, absl::Span<const TrueSequence> sequences,
                                      int32_t cp_rank, int32_t tp_rank);

// The MoE ordinals of a pipeline rank, for a model whose layers are all MoE and split evenly.
std::vector<int32_t> ExpectedOrdinals(int32_t num_layers, int32_t pipeline_size, int32_t pp_rank);

}  // namespace routing_replay::quickstart

#endif  // TESTS_QUICKSTART_EXPECTED_ROWS_H_
