// What each local row of a rank must show, from the slow reference and the generator alone.
#ifndef DEPLOY_QUICKSTART_EXPECTED_ROWS_H_
#define DEPLOY_QUICKSTART_EXPECTED_ROWS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "deploy/quickstart/rank_check.h"
#include "routing_replay/wire/row_range.h"
#include "tests/generator/routes.h"

namespace routing_replay::quickstart {

// One sequence of the packed micro-batch.
struct TrueSequence {
  const testing::Routes& routes;
  absl::Span<const RowRange> unrecorded;
  int64_t num_tokens = 0;
  int64_t padded_length = 0;
};

struct TrueRank {
  int32_t cp_size = 1, cp_rank = 0;
  int32_t tp_size = 1, tp_rank = 0;
};

// Packed sequences, zigzag per document, sequence parallel. The spans point into the routes.
std::vector<ExpectedRow> ExpectedRows(const std::vector<TrueSequence>& sequences, TrueRank rank);

}  // namespace routing_replay::quickstart

#endif  // DEPLOY_QUICKSTART_EXPECTED_ROWS_H_
