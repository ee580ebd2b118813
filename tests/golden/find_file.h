// Finds files relative to the runner, so that the source tree and its build can be moved.
#ifndef TESTS_GOLDEN_FIND_FILE_H_
#define TESTS_GOLDEN_FIND_FILE_H_

#include <filesystem>
#include <optional>

namespace routing_replay::golden {

// The folder of this program's executable.
std::filesystem::path ProgramFolder();

// Looks for `path` in `folder` and in each folder above it, and returns the first that exists. The tests find the
// source tree in this way because builds are inside it (build/release).
std::optional<std::filesystem::path> FindAbove(std::filesystem::path folder, const std::filesystem::path& path);

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_FIND_FILE_H_
