// What a fetch is told and what it gives, wherever the rows come from: the slices of a plan in one staging buffer, in
// storage encoding.
#ifndef ROUTING_REPLAY_TRAINER_STAGING_H_
#define ROUTING_REPLAY_TRAINER_STAGING_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "routing_replay/trainer/missing_policy.h"
#include "routing_replay/trainer/realign.h"
#include "routing_replay/wire/read_request.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample_id.h"
#include "routing_replay/wire/sample_state.h"

namespace routing_replay::trainer {

struct FetchOptions {
  Producer producer = Producer::kRollout;
  MissingPolicy missing = MissingPolicy::kStrict;
  bool wait = true;  // For rows that are not committed yet, until `timeout`.
  std::chrono::milliseconds timeout = std::chrono::seconds(120);
};

// One sequence of the micro-batch.
struct FetchSequence {
  std::string sample;
  int64_t handle = 0;                    // SampleHandle of its id; used where sample is empty.
  std::optional<int64_t> num_tokens;     // Expected T; another one counts as missing.
  std::vector<TokenCheck> token_checks;  // Expected; another one counts as missing.
  // What all ranks of the replica agreed on before. A sample that has this content id must have it still, and be
  // readable, whatever the policy: a rank that fell back alone would mix its layers with the others'. But for
  // kTokensNotKnown, which is as the policy has it: ranks that name tokens alike fall back alike.
  std::optional<uint64_t> content_id;
  bool live = false;  // It falls back: nothing is read, the whole sequence is unrecorded.
};

struct StagedRows {
  std::vector<uint8_t> staging;
  std::vector<StagedPiece> pieces;    // layer_begin counts in plan.layers.
  std::vector<SampleRecord> records;  // One per plan slice, in its order; kUnspecified of one that was not read.
  // Per sequence of the micro-batch: rows without a route (normal lists), all rows where it falls back. What
  // RealignInput::unrecorded takes.
  std::vector<std::vector<RowRange>> unrecorded;
  int64_t fallback_sequences = 0;
  std::vector<int32_t> dropped;  // Under kDrop: the sequences that fall back, in the order in which that was found.
};

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_STAGING_H_
