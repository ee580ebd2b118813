// golden_runner [--dir DIR]…: inputs and outputs of other projects' real code against ours. Without --dir: those of
// this repository.
#include <iostream>
#include <string>

#include "tests/golden/runner.h"

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> directories;
  for (int i = 1; i < argc; i += 2) {
    if (std::string(argv[i]) != "--dir" || i + 1 == argc) {
      std::cerr << "usage: golden_runner [--dir DIR]...\n";
      return 2;
    }
    directories.emplace_back(argv[i + 1]);
  }
  if (directories.empty()) directories.emplace_back(RR_GOLDEN_DATA);
  return routing_replay::golden::RunGoldenFiles(directories, std::cout).success() ? 0 : 1;
}
