// The sequences of a micro-batch from what trainers have at hand: masks (verl and SkyRL strip left padding by the
// attention mask), boundaries (cu_seqlens_q of Megatron's PackedSeqParams), token counts before media are expanded (a
// Hugging Face processor writes one placeholder per medium, or as many as the model's rows).
#ifndef ROUTING_REPLAY_TRAINER_SEQUENCES_H_
#define ROUTING_REPLAY_TRAINER_SEQUENCES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/rows.h"

namespace routing_replay::trainer {

// From an attention mask [batch][width], 1 for a token: T and, for a rectangle with padding on the left, first_row.
// recorded_rows is T - 1. A packer that strips the padding first (SkyRL, verl) has first_row = 0 in its documents: pass
// keep_left_padding = false. INVALID_ARGUMENT (kShape) for a size that is no multiple of width, (kField) for a value
// that is neither 0 nor 1, and (kShape) for tokens with padding between them.
absl::StatusOr<std::vector<SequenceShape>> SequencesFromMask(absl::Span<const uint8_t> mask, int64_t width,
                                                             bool keep_left_padding);

// From the real boundaries of documents (cu_seqlens, [B + 1]): T, and recorded_rows = T - 1.
// INVALID_ARGUMENT (kShape) unless they start at 0 and ascend.
absl::StatusOr<std::vector<SequenceShape>> SequencesFromCuSeqlens(absl::Span<const int64_t> cu_seqlens);

// T of a sample whose `tokens` count one placeholder per medium, media_rows[i] being the rows that medium i becomes in
// the model. Rows are numbered after expansion. INVALID_ARGUMENT (kShape) for more media than tokens, (kField) for a
// medium without rows or a sum above kMaxStreamRows.
absl::StatusOr<int64_t> MediaExpandedTokens(int64_t tokens, absl::Span<const int64_t> media_rows);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_SEQUENCES_H_
