#include "server/store/rocksdb/rocks_database.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <limits>
#include <memory>

#include "proto/wire/clock.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

// More than any disk has.
constexpr int64_t kTooMuch = std::numeric_limits<int64_t>::max() / 4;

// A user of disk space whose first GiveBack fails.
class SlowUser final : public SpaceUser {
 public:
  absl::Status GiveBack(std::atomic<bool>&) override {
    return ++calls == 1 ? absl::UnavailableError("not now") : absl::OkStatus();
  }

  std::atomic<int> calls{0};
};

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
  }
  EXPECT_OK(space_.Promise(most)) << "the first one has ended, and the rejected one has taken nothing";
}

TEST_F(RocksSpaceTest, WhatCouldNotBeGivenBackIsAskedForAgain) {
  const auto user = std::make_shared<SlowUser>();
  space_.Join(user);
  space_.NoteEnd();
  const Clock::Time deadline = Clock::Real().Now() + std::chrono::seconds(20);
  while (user->calls < 2 && Clock::Real().Now() < deadline) {
    EXPECT_TRUE(absl::IsResourceExhausted(space_.Promise(kTooMuch).status()));
  }
  space_.Stop();
  EXPECT_EQ(user->calls, 2);
}

}  // namespace
}  // namespace routing_replay::testing
