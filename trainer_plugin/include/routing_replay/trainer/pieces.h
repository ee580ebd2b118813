// Sequences that are put together from parts of samples: truncated ones, continued ones, several samples in a row.
#ifndef ROUTING_REPLAY_TRAINER_PIECES_H_
#define ROUTING_REPLAY_TRAINER_PIECES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/rows.h"

namespace routing_replay::trainer {

// Tokens [offset, offset + tokens) of a sequence are tokens start, start + 1, … of a sample.
struct SequencePiece {
  std::string sample;
  int32_t sequence = 0;  // Of the layout.
  int64_t offset = 0;
  int64_t tokens = 0;
  int64_t start = 0;
  // The first so many tokens have a route to replay: row `start` and on. One fewer than the tokens where the piece ends
  // with its sample, whose last token was never fed to the model.
  int64_t rows = 0;
  bool live = false;  // Of no sample: tokens without a route are kLive.
};

// The map with pieces in the place of sequences: `sequence` counts in `pieces`, `row` is that of the sample, and tokens
// behind the rows of their piece are unrecorded (kLive of a live piece), whatever the layout says. INVALID_ARGUMENT
// (kField) unless the pieces of each sequence of `layout` follow each other, ascending by sequence, and cover its
// tokens.
absl::StatusOr<RowMap> ShowPieces(const RowMap& map, const MicroBatchLayout& layout,
                                  absl::Span<const SequencePiece> pieces);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_PIECES_H_
