#include "routing_replay/trainer/replay_targets.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tests/reference/schedule.h"
#include "tests/support/layout_trials.h"
#include "tests/support/random_schedule.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
using routing_replay::testing::LayoutTrials;
using routing_replay::testing::RandomSchedule;
using ::testing::HasSubstr;

constexpr PassKey kPass{.step = 7, .micro_batch = 2, .chunk = 1};
const auto kNotFound = Fails(absl::StatusCode::kNotFound, Reason::kField);
const auto kTooEarlyOrTwice = Fails(absl::StatusCode::kFailedPrecondition, Reason::kField);

TEST(ReplayTargets, ForwardAndRecomputeReadTheSame) {
  ReplayTargets targets;
  ASSERT_OK(targets.Add(kPass, PassUse::kTraining, {4, 5}, 30, 2));
  EXPECT_THAT(targets.Recompute({kPass, 5}), kTooEarlyOrTwice);
  ASSERT_OK_AND_ASSIGN(Target target, targets.Forward({kPass, 5}));
  EXPECT_EQ(target, (Target{.buffer = 30, .slot = 3}));
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(target, targets.Recompute({kPass, 5}));
    EXPECT_EQ(target, (Target{.buffer = 30, .slot = 3}));
  }
  EXPECT_THAT(targets.Forward({kPass, 5}), kTooEarlyOrTwice);
  ASSERT_OK(targets.Forward({kPass, 4}));
  EXPECT_EQ(targets.size(), 2);
  ASSERT_OK(targets.Finish(kPass));
  EXPECT_EQ(targets.size(), 0);
  EXPECT_THAT(targets.Recompute({kPass, 5}), kNotFound);
  EXPECT_THAT(targets.Finish(kPass), kNotFound);
}

TEST(ReplayTargets, ForwardOnlyLeavesNothingBehind) {
  ReplayTargets targets;
  ASSERT_OK(targets.Add(kPass, PassUse::kForwardOnly, {4, 5}, 30));
  ASSERT_OK(targets.Forward({kPass, 4}));
  EXPECT_THAT(targets.Forward({kPass, 4}), kNotFound);
  EXPECT_THAT(targets.Recompute({kPass, 4}), kNotFound);
  ASSERT_OK(targets.Forward({kPass, 5}));
  EXPECT_EQ(targets.size(), 0);
  EXPECT_OK(targets.EndStep(kPass.step));
  EXPECT_OK(targets.Add(kPass, PassUse::kForwardOnly, {}, 30));
  EXPECT_OK(targets.EndStep(kPass.step));
}

TEST(ReplayTargets, TheForwardPassEndsWhenAllRoutersAsked) {
  ReplayTargets targets;
  for (PassUse use : {PassUse::kTraining, PassUse::kForwardOnly}) {
    ASSERT_OK(targets.Add(kPass, use, {4, 5}, 30));
    ASSERT_OK(targets.Forward({kPass, 4}));
    const absl::Status silent = targets.EndForward(kPass);
    EXPECT_THAT(silent, kTooEarlyOrTwice);
    EXPECT_EQ(GetErrorDetail(silent)->layer, 5);
    EXPECT_EQ(targets.size(), 0);
    ASSERT_OK(targets.Add(kPass, use, {4}, 30));
    ASSERT_OK(targets.Forward({kPass, 4}));
    EXPECT_OK(targets.EndForward(kPass));
    EXPECT_EQ(targets.size(), use == PassUse::kTraining ? 1 : 0);
    EXPECT_EQ(targets.Finish(kPass).ok(), use == PassUse::kTraining);
  }
}

TEST(ReplayTargets, ErrorsNameTheKey) {
  ReplayTargets targets;
  ASSERT_OK(targets.Add(kPass, PassUse::kTraining, {4, 5}, 30));
  const auto missing = targets.Forward({{.step = 7, .micro_batch = 3, .chunk = 1}, 4});
  EXPECT_THAT(missing, kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("step 7, micro-batch 3, virtual stage 1, layer 4"));
  EXPECT_EQ(GetErrorDetail(missing.status())->layer, 4);
  EXPECT_THAT(targets.Forward({kPass, 6}), kNotFound);
  EXPECT_THAT(targets.Add(kPass, PassUse::kTraining, {9}, 31), Fails(absl::StatusCode::kAlreadyExists, Reason::kField));
  const auto wrong = Fails(absl::StatusCode::kInvalidArgument, Reason::kField);
  EXPECT_THAT(targets.Add({.micro_batch = -1}, PassUse::kTraining, {9}, 31), wrong);
  EXPECT_THAT(targets.Add({.chunk = -1}, PassUse::kTraining, {9}, 31), wrong);
  EXPECT_THAT(targets.Add({}, PassUse::kTraining, {9, 8, 9}, 31), wrong);
  EXPECT_THAT(targets.Add({}, PassUse::kTraining, {9}, 31, -1), wrong);
  EXPECT_THAT(targets.Add({}, PassUse::kTraining, {9}, 31, std::numeric_limits<int32_t>::max()), wrong);
  // A router that was never asked for its ids did not replay.
  ASSERT_OK(targets.Forward({kPass, 4}));
  const absl::Status silent = targets.Finish(kPass);
  EXPECT_THAT(silent, kTooEarlyOrTwice);
  EXPECT_EQ(GetErrorDetail(silent)->layer, 5);
}

TEST(ReplayTargets, NothingReachesAnotherStep) {
  ReplayTargets targets;
  const PassKey next{.step = 8, .micro_batch = 2, .chunk = 1};
  ASSERT_OK(targets.Add(kPass, PassUse::kTraining, {4}, 30));
  ASSERT_OK(targets.Add(next, PassUse::kTraining, {4}, 31));
  ASSERT_OK(targets.Forward({kPass, 4}));
  EXPECT_THAT(targets.EndStep(7), kTooEarlyOrTwice);
  EXPECT_THAT(targets.Recompute({kPass, 4}), kNotFound);
  ASSERT_OK_AND_ASSIGN(const Target target, targets.Forward({next, 4}));
  EXPECT_EQ(target.buffer, 31);
}

// A rank that runs one schedule. It gives buffers out again as soon as they are free, and writes into each slot what
// belongs to the micro-batch, chunk and layer.
class RankOfSchedule {
 public:
  RankOfSchedule(ReplayTargets& targets, const PipelineSchedule& schedule, int64_t step, std::mt19937& random)
      : targets_(targets), schedule_(schedule), step_(step), random_(random) {
    layers_.resize(schedule.virtual_stages.value_or(1));
    for (int32_t layer = 0; layer < 8; ++layer) layers_[random() % layers_.size()].push_back(layer);
  }

  void Run(const Pass& pass) {
    const PassKey key{step_, pass.micro_batch, pass.chunk};
    switch (pass.kind) {
      case PassKind::kForward:
        ASSERT_NO_FATAL_FAILURE(Fill(key));
        ASSERT_NO_FATAL_FAILURE(AskForAll(key, [&](const TargetKey& of) { return targets_.Forward(of); }));
        if (schedule_.forward_only) free_.insert(buffers_[key]);
        break;
      case PassKind::kRecompute:
        ASSERT_NO_FATAL_FAILURE(AskForAll(key, [&](const TargetKey& of) { return targets_.Recompute(of); }));
        break;
      case PassKind::kBackward:
        ASSERT_OK(targets_.Finish(key));
        free_.insert(buffers_[key]);
        break;
    }
  }

  int64_t buffers() const { return static_cast<int64_t>(contents_.size()); }

 private:
  using Content = std::pair<PassKey, int32_t>;

  void Fill(const PassKey& key) {
    if (free_.empty()) {
      free_.insert(buffers());
      contents_.emplace_back();
    }
    const int64_t buffer = buffers_[key] = *free_.begin();
    free_.erase(buffer);
    contents_[buffer].clear();
    for (int32_t layer : layers_[key.chunk]) contents_[buffer].push_back({key, layer});
    const PassUse use = schedule_.forward_only ? PassUse::kForwardOnly : PassUse::kTraining;
    ASSERT_OK(targets_.Add(key, use, layers_[key.chunk], buffer));
  }

  // In any order of the layers.
  template <typename Ask>
  void AskForAll(const PassKey& key, Ask ask) {
    std::vector<int32_t> layers = layers_[key.chunk];
    std::shuffle(layers.begin(), layers.end(), random_);
    for (int32_t layer : layers) {
      ASSERT_OK_AND_ASSIGN(const Target target, ask({key, layer}));
      ASSERT_EQ(contents_.at(target.buffer).at(target.slot), (Content{key, layer}));
    }
  }

  ReplayTargets& targets_;
  const PipelineSchedule& schedule_;
  const int64_t step_;
  std::mt19937& random_;
  std::vector<std::vector<int32_t>> layers_;    // Of each chunk.
  std::vector<std::vector<Content>> contents_;  // [buffer][slot]
  std::set<int64_t> free_;
  std::map<PassKey, int64_t> buffers_;
};

// A router finds what was written for its own micro-batch, chunk and layer, whatever the schedule, and no schedule
// needs more buffers than its peaks say.
TEST(ReplayTargetsProperty, NoScheduleMixesRows) {
  std::mt19937 random(64);
  int ran = 0;
  ReplayTargets targets;
  for (int trial = 0; trial < LayoutTrials() / 5; ++trial) {
    const PipelineSchedule schedule = RandomSchedule(random);
    const auto order = PassOrder(schedule);
    if (!order.ok()) continue;
    ++ran;
    RankOfSchedule rank(targets, schedule, trial, random);
    for (const Pass& pass : *order) ASSERT_NO_FATAL_FAILURE(rank.Run(pass)) << "trial " << trial;
    ASSERT_OK(targets.EndStep(trial));
    ASSERT_EQ(targets.size(), 0);
    const std::vector<int64_t> peaks = PeakInFlight(*order, schedule.virtual_stages.value_or(1));
    ASSERT_LE(rank.buffers(), std::accumulate(peaks.begin(), peaks.end(), int64_t{0}));
  }
  EXPECT_GT(ran, LayoutTrials() / 20);
}

TEST(ReplayTargets, ThreadsWorkOnTheirOwnPasses) {
  ReplayTargets targets;
  const auto work = [&](int32_t chunk) {
    for (int32_t m = 0; m < 200; ++m) {
      const PassKey key{.step = 1, .micro_batch = m, .chunk = chunk};
      ASSERT_OK(targets.Add(key, PassUse::kTraining, {chunk}, m));
      ASSERT_OK_AND_ASSIGN(const Target forward, targets.Forward({key, chunk}));
      ASSERT_OK_AND_ASSIGN(const Target recompute, targets.Recompute({key, chunk}));
      ASSERT_EQ(forward, recompute);
      ASSERT_EQ(forward.buffer, m);
      ASSERT_OK(targets.Finish(key));
    }
  };
  std::vector<std::thread> threads;
  for (int32_t chunk = 0; chunk < 4; ++chunk) threads.emplace_back(work, chunk);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(targets.size(), 0);
}

}  // namespace
}  // namespace routing_replay::trainer
