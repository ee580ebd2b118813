#include "tests/golden/arguments.h"

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "tests/golden/find_file.h"
#include "tests/golden/runner.h"

namespace routing_replay::golden {
namespace {

const std::filesystem::path kData = "tests/golden/data";

}  // namespace

int RunWithArguments(int argc, char** argv) {
  std::vector<std::filesystem::path> directories;
  for (int i = 1; i < argc; i += 2) {
    if (std::string(argv[i]) != "--dir" || i + 1 == argc) {
      std::cerr << "usage: " << argv[0] << " [--dir DIR]...\n";
      return 2;
    }
    directories.emplace_back(argv[i + 1]);
  }
  if (directories.empty()) directories.push_back(FindAbove(ProgramFolder(), kData).value_or(kData));
  return RunGoldenFiles(directories, std::cout).success() ? 0 : 1;
}

}  // namespace routing_replay::golden
