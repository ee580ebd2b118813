#include "tests/golden/find_file.h"

namespace routing_replay::golden {

std::filesystem::path ProgramFolder() { return std::filesystem::canonical("/proc/self/exe").parent_path(); }

std::optional<std::filesystem::path> FindAbove(std::filesystem::path folder, const std::filesystem::path& path) {
  while (!std::filesystem::exists(folder / path)) {
    if (folder == folder.parent_path()) return std::nullopt;
    folder = folder.parent_path();
  }
  return folder / path;
}

}  // namespace routing_replay::golden
