// The command line of golden_runner and golden_cuda_runner.
#ifndef TESTS_GOLDEN_ARGUMENTS_H_
#define TESTS_GOLDEN_ARGUMENTS_H_

namespace routing_replay::golden {

// Runs the golden files of each `--dir DIR` (by default those of the source tree around this program) and prints the
// results. Returns the exit status: 0 if all cases passed, 1 if not, 2 for invalid arguments.
int RunWithArguments(int argc, char** argv);

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_ARGUMENTS_H_
