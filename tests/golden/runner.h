// Runs every case of every golden file and prints the results.
#ifndef TESTS_GOLDEN_RUNNER_H_
#define TESTS_GOLDEN_RUNNER_H_

#include <cstdint>
#include <filesystem>
#include <ostream>
#include <vector>

namespace routing_replay::golden {

struct Totals {
  int64_t passed = 0;
  int64_t failed = 0;
  bool success() const { return failed == 0 && passed > 0; }
};

// Prints to `out`: per file, the numbers of cases that passed, failed and could not run; per failure, the case's name
// and the first difference; the number of passed cases that skipped a part, and why; then the packages that are missing
// for cases that could not run; and as the last line "N passed, M failed". A missing directory, an unreadable file and
// a file of unknown kind count as one failure each.
Totals RunGoldenFiles(const std::vector<std::filesystem::path>& directories, std::ostream& out);

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_RUNNER_H_
