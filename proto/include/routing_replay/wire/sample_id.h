// Sample ids, run names and handles.
#ifndef ROUTING_REPLAY_WIRE_SAMPLE_ID_H_
#define ROUTING_REPLAY_WIRE_SAMPLE_ID_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace routing_replay {

// Which forward pass made the rows. Values are those of the wire.
enum class Producer : uint8_t { kRollout = 1, kTrainer = 2 };
const char* ProducerName(Producer producer);

// INVALID_ARGUMENT unless `id` is [A-Za-z0-9._:/-]{1,128}; `field` names it in the message. Run names obey the same
// rule.
absl::Status CheckId(absl::string_view id, absl::string_view field);

// The handle of a sample id: the low 56 bits of XXH64 of its bytes with seed 0. Needs no server call; equal on every
// machine. Two ids of one run with the same handle are rejected when the second sample opens: of 10^6 samples by a
// chance of 10^-5.
inline constexpr int kHandleBits = 56;
int64_t SampleHandle(absl::string_view sample_id);
// SampleHandle from what a batch carries: over several servers the highest byte says which one has the sample
// (Run::Handle).
constexpr int64_t BareHandle(int64_t handle) { return handle & ((int64_t{1} << kHandleBits) - 1); }
// Where handles come from; tests of collisions put another one in the place of SampleHandle.
using HandleFunction = std::function<int64_t(absl::string_view)>;

// As errors name a sample: its id, or "with handle 5" where `sample` is empty.
std::string DescribeSample(absl::string_view sample, int64_t handle);

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_WIRE_SAMPLE_ID_H_
