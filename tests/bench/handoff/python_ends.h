// Starts workers and ranks of the hand-off in Python (python_end.py).
#ifndef TESTS_BENCH_HANDOFF_PYTHON_ENDS_H_
#define TESTS_BENCH_HANDOFF_PYTHON_ENDS_H_

#include <string>

#include "absl/status/statusor.h"
#include "tests/bench/common/team.h"
#include "tests/bench/handoff/scenario.h"

namespace routing_replay::bench {

struct PythonEnds {
  Team workers, ranks;
};

// Returns when each process has loaded its data. `python` is the path of an interpreter that finds both packages;
// `tuned` sets the allocator's environment variables that the README recommends.
absl::StatusOr<PythonEnds> StartPythonEnds(const std::string& python, const HandoffScenario& scenario, bool tuned);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_HANDOFF_PYTHON_ENDS_H_
