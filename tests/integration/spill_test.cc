// A server that holds more than its memory budget, with cold samples in a directory.
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "tests/integration/fixture.h"
#include "tests/support/scratch_directory.h"

namespace routing_replay::testing {
namespace {

constexpr int64_t kRows = 2000;
constexpr int kSamples = 40;

class SpillTest : public ServerTest {
 protected:
  void SetUp() override {
    StartServer({.memory_budget = 8 << 20, .spill_directory = directory_.path(), .spill_budget = int64_t{1} << 30});
    run_ = OpenRun("run", geometry_);
  }
  RandomRoutes Routes(int i) const { return MakeRandomRoutes(geometry_, kRows, i); }
  void Fill() {
    for (int i = 0; i < kSamples; ++i) {
      ASSERT_OK(PutRows(*run_, Routes(i), {0, kRows}, {.sample = absl::StrCat(i), .seal_num_tokens = kRows + 1}));
    }
  }
  std::map<std::string, int64_t> Counters() {
    const auto info = client_->GetServerInfo();
    EXPECT_OK(info);
    return {info->counters.begin(), info->counters.end()};
  }

  const ScratchDirectory directory_;
  const Geometry geometry_ = Geometry::Uniform(24, 128, 8);
  RunHandle run_;
};

TEST_F(SpillTest, HoldsMoreThanItsMemoryBudget) {
  Fill();
  auto info = client_->GetServerInfo();
  ASSERT_OK(info);
  EXPECT_GT(info->spilled_bytes, info->budget_bytes / 4);
  EXPECT_EQ(info->spill_budget_bytes, int64_t{1} << 30);
  EXPECT_LE(info->stored_bytes, info->budget_bytes);
  EXPECT_GT(Counters()["routing_replay_spilled_samples_total"], 0);
  for (int i = 0; i < kSamples; ++i) ExpectRows(*run_, absl::StrCat(i), Routes(i), {{0, kRows}});
  EXPECT_GT(Counters()["routing_replay_spill_loads_total"], 0);
  EXPECT_EQ(Counters()["routing_replay_spill_failures_total"], 0);
  ASSERT_OK(run_->Drop());
  info = client_->GetServerInfo();
  EXPECT_EQ(info->spilled_bytes, 0);
  EXPECT_EQ(info->stored_bytes, 0);
}

// Whatever a damaged disk returns, a sample must be exact or LOST.
TEST_F(SpillTest, WhatIsDamagedIsLostAndNothingElseIs) {
  Fill();
  for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
    if (entry.file_size() == 0) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<int64_t>(entry.file_size() / 2));
    file.put(static_cast<char>(0xa5)).put(static_cast<char>(0x5a));
  }
  int lost = 0;
  for (int i = 0; i < kSamples; ++i) {
    const auto read = run_->ReadRows({.samples = {{.sample = absl::StrCat(i)}}}, kCallTimeout);
    ASSERT_OK(read);
    if ((*read)[0].record.status == SampleStatus::kLost) {
      ++lost;
    } else {
      ExpectRows(*run_, absl::StrCat(i), Routes(i), {{0, kRows}});
    }
  }
  EXPECT_GE(lost, 1);
  EXPECT_LE(lost, kSamples / 4);
  EXPECT_GE(Counters()["routing_replay_spill_lost_blocks_total"], 1);
}

TEST_F(SpillTest, AnotherServerCannotHaveTheDirectory) {
  const auto second = Server::Start({.listen = {"127.0.0.1:0"}, .spill_directory = directory_.path()});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace routing_replay::testing
