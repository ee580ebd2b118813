#include "routing_replay/trainer/fallback_limit.h"

namespace routing_replay::trainer {

bool ExceedsFallbackLimit(double limit, int64_t samples, int64_t fallen_back) {
  if (samples <= 0) return false;
  // The quotient is rounded as the limit's text was; the product of both is not.
  return !(static_cast<double>(fallen_back) / static_cast<double>(samples) <= limit);
}

}  // namespace routing_replay::trainer
