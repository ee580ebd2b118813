// The command line of the runners.
#ifndef TESTS_GOLDEN_ARGUMENTS_H_
#define TESTS_GOLDEN_ARGUMENTS_H_

#include <string>

namespace routing_replay::golden {

// Takes [--dir DIR]…, runs the golden files there (under `data` without any) and tells it on standard output. Returns
// the exit status: 0 if all cases passed, 1 if not, 2 for other arguments.
int RunWithArguments(int argc, char** argv, const std::string& data);

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_ARGUMENTS_H_
