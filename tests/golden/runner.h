// Runs every case of every golden file and says how it went.
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

// Writes to `out` per file the number of cases that passed, failed and were not asked, per failure the case's name and
// the first difference in words, how many passed cases were asked without a part of them and why, then what those not
// asked need, and as its last line "N passed, M failed". A directory that is not there, a file that cannot be read and
// a file of unknown kind count as one failure each.
Totals RunGoldenFiles(const std::vector<std::filesystem::path>& directories, std::ostream& out);

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_RUNNER_H_
