// Finds files relative to the runner, wherever the tree and its build have been moved.
#ifndef TESTS_GOLDEN_FIND_FILE_H_
#define TESTS_GOLDEN_FIND_FILE_H_

#include <filesystem>
#include <optional>

namespace routing_replay::golden {

// The folder that this program's executable stands in.
std::filesystem::path ProgramFolder();

// `path` in the nearest folder above `folder` that has it. Builds are inside their source tree (build/release).
std::optional<std::filesystem::path> FindAbove(std::filesystem::path folder, const std::filesystem::path& path);

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_FIND_FILE_H_
