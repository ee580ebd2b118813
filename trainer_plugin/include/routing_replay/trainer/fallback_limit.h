// How much of a step may route live before it is stopped: a step that is all live is never silent.
#ifndef ROUTING_REPLAY_TRAINER_FALLBACK_LIMIT_H_
#define ROUTING_REPLAY_TRAINER_FALLBACK_LIMIT_H_

#include <cstdint>

namespace routing_replay::trainer {

// Whether more than the fraction `limit`, 0 … 1, of a step's samples fall back. As many as it says exactly are within
// it: 29 of 100 are no more than 0.29. Nothing of no samples is too much; all is above a limit that is no number.
bool ExceedsFallbackLimit(double limit, int64_t samples, int64_t fallen_back);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_FALLBACK_LIMIT_H_
