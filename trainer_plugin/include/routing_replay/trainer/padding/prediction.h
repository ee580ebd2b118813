// What padding policies are asked, and what they say.
//
// A policy is the rule by which a framework pads a micro-batch before it packs it. It serves preallocation and checks;
// what the trainer really passed always wins.
#ifndef ROUTING_REPLAY_TRAINER_PADDING_PREDICTION_H_
#define ROUTING_REPLAY_TRAINER_PADDING_PREDICTION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "routing_replay/trainer/rows.h"

namespace routing_replay::trainer {

// A micro-batch before padding: B sequences of tokens, as rows.h counts them, and the parallel sizes of the trainer.
struct UnpaddedBatch {
  std::vector<SequenceShape> sequences;  // [B], B >= 1
  int32_t cp_size = 1;
  int32_t tp_size = 1;
  bool sequence_parallel = false;
};

// Every policy's function gives one of these, or INVALID_ARGUMENT: kField for an option or size that cannot be, kShape
// where the framework refuses the batch before it pads it. A layout that CP or SP cannot cut is given as it is, with a
// hazard: BuildRowMap refuses it.
struct PaddingPrediction {
  std::string policy;  // "verl", …
  // The micro-batch as the framework hands it to the model. A BSHD layout is in Megatron's row order, sequence-major,
  // also where the framework flattens its routes in another one: then that is a hazard.
  MicroBatchLayout layout;
  std::string rule;                  // Of the padding, in words and numbers.
  std::vector<std::string> hazards;  // What goes wrong in the framework itself with this micro-batch, in words.
};

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_PADDING_PREDICTION_H_
