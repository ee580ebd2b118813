// The dtypes of a router's tensors, where a type cannot say it. Plain data without further headers.
#ifndef ROUTING_REPLAY_TRAINER_DTYPE_H_
#define ROUTING_REPLAY_TRAINER_DTYPE_H_

#include <cstdint>

namespace routing_replay::trainer {

enum class Dtype : uint8_t { kFloat32 = 0, kFloat64 = 1, kBfloat16 = 2, kFloat16 = 3 };

// Of ids that a router wrote down.
enum class IdType : uint8_t { kInt64 = 0, kInt32 = 1, kInt16 = 2, kUint8 = 3 };

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_DTYPE_H_
