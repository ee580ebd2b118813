// The number of random layouts that a property test tries.
#ifndef TESTS_SUPPORT_LAYOUT_TRIALS_H_
#define TESTS_SUPPORT_LAYOUT_TRIALS_H_

#include <cstdlib>

namespace routing_replay::testing {

// RR_LAYOUT_TRIALS, or 5,000.
inline int LayoutTrials() {
  const char* const said = std::getenv("RR_LAYOUT_TRIALS");
  return said == nullptr ? 5000 : std::atoi(said);
}

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_LAYOUT_TRIALS_H_
