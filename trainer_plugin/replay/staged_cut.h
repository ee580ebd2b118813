// Where the cuts of a staged piece lie.
#ifndef TRAINER_PLUGIN_REPLAY_STAGED_CUT_H_
#define TRAINER_PLUGIN_REPLAY_STAGED_CUT_H_

#include <cstdint>

#include "routing_replay/trainer/buffer_layout.h"
#include "routing_replay/trainer/realign.h"

namespace routing_replay::trainer {

// Bytes of the piece's cut for one slot.
inline int64_t CutBytes(const BufferLayout& layout, const StagedPiece& piece, int32_t slot) {
  return layout.geometry().cut_bytes_at(layout.ordinal(slot), piece.bit_offset, piece.rows.size(), piece.codec);
}

// Bytes of the whole piece.
inline int64_t PieceBytes(const BufferLayout& layout, const StagedPiece& piece) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < piece.layer_count; ++i) bytes += CutBytes(layout, piece, piece.layer_begin + i);
  return bytes;
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_STAGED_CUT_H_
