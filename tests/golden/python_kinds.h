// Kinds of files that scripts answer: those of Megatron's own objects one of the trainer's Python face, in an
// environment that has megatron-core; those of model configurations, which Python reads, one of the Python client.
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
  std::string needs;  // What is not installed; then there are no outcomes.
  std::vector<NamedOutcome> outcomes;
};

// Asks all cases of a file. The interpreter is what RR_GOLDEN_PYTHON names, or python3, or, where that lacks what the
// script needs, /usr/bin/python3; the script is that of the source tree around this program; the library is in
// ROUTING_REPLAY_LIBRARY_DIR, or in ../lib from this program. INTERNAL if the script ends with an error or says
// anything else than the scripts describe.
absl::StatusOr<PythonAnswer> AskPython(const std::filesystem::path& file);

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_PYTHON_KINDS_H_
