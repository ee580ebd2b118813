// How many random layouts a property test tries.
#ifndef TESTS_SUPPORT_LAYOUT_TRIALS_H_
#define TESTS_SUPPORT_LAYOUT_TRIALS_H_

#include <cstdlib>

namespace routing_replay::testing {

// 5,000, or what RR_LAYOUT_TRIALS says.
inline int LayoutTrials() {
  const char* const said = std::getenv("RR_LAYOUT_TRIALS");
  return said == nullptr ? 5000 : std::atoi(said);
}

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_LAYOUT_TRIALS_H_
