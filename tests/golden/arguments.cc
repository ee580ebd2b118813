#include "tests/golden/arguments.h"

#include <filesystem>
#include <iostream>
#include <vector>

#include "tests/golden/runner.h"

namespace routing_replay::golden {

int RunWithArguments(int argc, char** argv, const std::string& data) {
  std::vector<std::filesystem::path> directories;
  for (int i = 1; i < argc; i += 2) {
    if (std::string(argv[i]) != "--dir" || i + 1 == argc) {
      std::cerr << "usage: " << argv[0] << " [--dir DIR]...\n";
      return 2;
    }
    directories.emplace_back(argv[i + 1]);
  }
  if (directories.empty()) directories.emplace_back(data);
  return RunGoldenFiles(directories, std::cout).success() ? 0 : 1;
}

}  // namespace routing_replay::golden
