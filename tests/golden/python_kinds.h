// Kinds that Python scripts run. Those of Megatron's own objects use a script of the trainer's Python package, in an
// environment that has megatron-core; those of model configurations use a script of the Python client.
#ifndef TESTS_GOLDEN_PYTHON_KINDS_H_
#define TESTS_GOLDEN_PYTHON_KINDS_H_

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/golden/kind.h"

namespace routing_replay::golden {

bool IsPythonKind(const std::string& stem);

struct NamedOutcome {
  std::string name;
  Outcome outcome;
};

struct PythonAnswer {
  std::string needs;  // The missing package; if set, there are no outcomes.
  std::vector<NamedOutcome> outcomes;
};

// Runs all cases of a file. The interpreter is RR_GOLDEN_PYTHON or python3 or, if that lacks a package that the script
// needs, /usr/bin/python3. The script is taken from the source tree around this program, the library from
// ROUTING_REPLAY_LIBRARY_DIR or from ../lib beside this program. INTERNAL if the script fails or its output is
// malformed.
absl::StatusOr<PythonAnswer> AskPython(const std::filesystem::path& file);

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_PYTHON_KINDS_H_
