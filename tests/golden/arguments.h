// The command line of the runners.
#ifndef TESTS_GOLDEN_ARGUMENTS_H_
#define TESTS_GOLDEN_ARGUMENTS_H_

namespace routing_replay::golden {

// Takes [--dir DIR]…, runs the golden files there (without any, those of the source tree around this program) and tells
// it on standard output. Returns the exit status: 0 if all cases passed, 1 if not, 2 for other arguments.
int RunWithArguments(int argc, char** argv);

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_ARGUMENTS_H_
