// Workers and ranks of the hand-off in Python (python_end.py), as processes.
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

// Returns when each process holds what it needs. `python` is the path of an interpreter that finds both packages;
// tuned: with the allocator's settings that the README gives to users.
absl::StatusOr<PythonEnds> StartPythonEnds(const std::string& python, const HandoffScenario& scenario, bool tuned);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_HANDOFF_PYTHON_ENDS_H_
