// The row map says which token each local row of a rank shows. Local rows are in the order of Megatron's TopKRouter.
#ifndef ROUTING_REPLAY_TRAINER_ROW_MAP_H_
#define ROUTING_REPLAY_TRAINER_ROW_MAP_H_

#include <cstdint>

namespace routing_replay::trainer {

enum class RowState : uint8_t {
  kReplayed = 0,    // A token whose route is replayed.
  kUnrecorded = 1,  // A real token without a route.
  kPad = 2,         // Padding, or the last token of a sequence if it takes filler ids (realign.h).
  kLive = 3,        // A token of a sequence that belongs to no sample and so routes live on purpose.
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
