#include "server/store/rocksdb/rocks_database.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

class RocksSpaceTest : public ::testing::Test {
 protected:
  const ScratchDirectory disk_;
  RocksSpace space_{disk_.path(), std::make_shared<rocksdb::WriteBufferManager>(1 << 20)};
};

TEST_F(RocksSpaceTest, WhatOneWriteIsPromisedNoOtherIs) {
  // `most` is 30 % of the free space. Each promise counts twice (log and file), so one fits with 60 %, and two would
  // need 120 %.
  const auto most = static_cast<int64_t>(std::filesystem::space(disk_.path()).available / 10 * 3);
  {
    const auto one = space_.Promise(most);
    ASSERT_OK(one);
    EXPECT_TRUE(absl::IsResourceExhausted(space_.Promise(most).status()));
    EXPECT_EQ(space_.rejections(), 1);
  }
  EXPECT_OK(space_.Promise(most)) << "the first one has ended, and the rejected one has taken nothing";
}

}  // namespace
}  // namespace routing_replay::testing
