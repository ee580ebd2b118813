// The on-policy contract: with which weights the rows that a step replays were made. A rollout that goes on while
// weights are updated holds rows of several versions; trainers that want engine and trainer to be bit-equal refuse such
// samples, others report them.
#ifndef ROUTING_REPLAY_TRAINER_ON_POLICY_H_
#define ROUTING_REPLAY_TRAINER_ON_POLICY_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "routing_replay/wire/sample_state.h"

namespace routing_replay::trainer {

struct WeightSummary {
  int64_t samples = 0;                // That say their versions at all.
  int64_t mixed = 0;                  // Of those, the ones of several versions.
  std::optional<size_t> first_mixed;  // Number of the first one, among all that were given.
  std::optional<int64_t> oldest;      // Of the rows whose version has a number.
  std::optional<int64_t> lag;         // How many versions `oldest` is behind the trainer's; below 0 if it is ahead.
};

// Of each sample its weight spans, those of the whole sample whatever rows a rank holds, so that all ranks come to the
// same. A version is a number with its label: spans of one number and two labels are of two versions, and so are rows
// of an unknown version (kUnknownWeightVersion) beside others. `current`: the trainer's, if it knows one.
WeightSummary SummarizeWeights(absl::Span<const absl::Span<const WeightSpan>> samples, std::optional<int64_t> current);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_ON_POLICY_H_
