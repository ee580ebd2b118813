#include "tests/golden/find_file.h"

#include <gtest/gtest.h>

#include <fstream>

namespace routing_replay::golden {
namespace {

TEST(FindFileTest, TheNearestFolderAbove) {
  const auto root = std::filesystem::path(::testing::TempDir()) / "find_file_test";
  std::filesystem::remove_all(root);
  std::filesystem::create_directories(root / "build/release/bin");
  EXPECT_EQ(FindAbove(root / "build/release/bin", "find/me"), std::nullopt);
  for (const auto& folder : {root, root / "build"}) {
    std::filesystem::create_directories(folder / "find");
    std::ofstream(folder / "find/me") << "";
    EXPECT_EQ(FindAbove(root / "build/release/bin", "find/me"), folder / "find/me");
  }
  std::filesystem::remove_all(root);
}

TEST(FindFileTest, TheProgramIsWhereItWasBuilt) {
  EXPECT_TRUE(std::filesystem::exists(ProgramFolder() / "golden_runner_test"));
}

}  // namespace
}  // namespace routing_replay::golden
