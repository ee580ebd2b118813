// The row map: what each local row of a rank shows, [local rows] in the order in which Megatron's TopKRouter sees them.
#ifndef ROUTING_REPLAY_TRAINER_ROW_MAP_H_
#define ROUTING_REPLAY_TRAINER_ROW_MAP_H_

#include <cstdint>

namespace routing_replay::trainer {

enum class RowState : uint8_t {
  kReplayed = 0,    // A token whose route is replayed.
  kUnrecorded = 1,  // A real token without a route.
  kPad = 2,         // No token, or the last token of a sequence if it takes filler (realign.h).
  kLive = 3,        // A token of a sequence that belongs to no sample: it routes live on purpose.
};

// One local row. `sequence` and `row` mean nothing for a pad.
struct LocalRow {
  int32_t sequence = 0;  // Index of the sequence in the micro-batch.
  int32_t row = 0;       // Row (token position) of the sequence.
  RowState state = RowState::kPad;
  friend bool operator==(const LocalRow&, const LocalRow&) = default;
};

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_ROW_MAP_H_
