// Compares what a rank is about to inject with the reference.
#ifndef TESTS_QUICKSTART_RANK_CHECK_H_
#define TESTS_QUICKSTART_RANK_CHECK_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/realign.h"
#include "routing_replay/trainer/row_map.h"
#include "tests/quickstart/results.h"

namespace routing_replay::quickstart {

// One local row of the reference: its state and, if it is replayed, its ids as [MoE layers of the model][K].
struct ExpectedRow {
  trainer::RowState state = trainer::RowState::kPad;
  absl::Span<const uint16_t> ids;
};

// A rank's index buffer and row states.
struct InjectedRows {
  const trainer::BufferLayout& layout;
  absl::Span<const uint8_t> indices;
  absl::Span<const trainer::RowState> states;
};

// The rank must hold exactly these layers in this order. INTERNAL names both lists.
absl::Status CheckLayers(const trainer::BufferLayout& layout, absl::Span<const int32_t> expected_ordinals);

// Compares every state, and every id of every replayed row. Counts rows and ids in `result`. INTERNAL names the first
// difference.
absl::Status CheckIndices(const InjectedRows& rows, absl::Span<const ExpectedRow> expected, RankResult& result);

// Runs router replay over seeded logits for the first, the middle and the last local layer. The routing map must have
// exactly the expected experts in replayed rows, the K highest logits in unrecorded rows and K experts in pads;
// probabilities must be the softmax over these experts. INTERNAL names the first difference.
absl::Status CheckRouter(const InjectedRows& rows, absl::Span<const ExpectedRow> expected, uint64_t seed,
                         RankResult& result);

}  // namespace routing_replay::quickstart

#endif  // TESTS_QUICKSTART_RANK_CHECK_H_
