// The router implementation that routing_* cases test: the CPU's, unless a program replaces it.
#ifndef TESTS_GOLDEN_KINDS_ROUTER_PATH_H_
#define TESTS_GOLDEN_KINDS_ROUTER_PATH_H_

#include "routing_replay/trainer/router.h"

namespace routing_replay::golden {

// D is float, double or Bf16. The two functions may only be replaced before any case runs.
template <typename D>
struct RouterPath {
  using Forward = absl::Status (*)(const trainer::RouterConfig&, const trainer::RouterForwardInput<D>&,
                                   const trainer::RouterForwardOutput<D>&, trainer::RouterCounters&);
  using Backward = absl::Status (*)(const trainer::RouterConfig&, const trainer::RouterBackwardInput<D>&, absl::Span<D>,
                                    trainer::RouterCounters&);
  static inline Forward forward = trainer::RouterReplayForward<D>;
  static inline Backward backward = trainer::RouterReplayBackward<D>;
};

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_KINDS_ROUTER_PATH_H_
