#include "routing_replay/trainer/agreement.h"

#include <algorithm>
#include <functional>
#include <random>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/sample.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
using ::testing::HasSubstr;
using Decisions = std::vector<absl::StatusOr<StepDecision>>;
constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;

// Runs all rounds and returns the decision of each rank. If ranks fail, all of them fail in the same round.
Decisions AgreeOnAll(const std::vector<absl::StatusOr<StepReport>>& seen) {
  std::vector<StepAgreement> ranks;
  for (const auto& step : seen) ranks.emplace_back(static_cast<int32_t>(ranks.size()), step);
  Decisions decisions(seen.size());
  while (!ranks[0].words().empty()) {
    std::vector<int64_t> reduced(ranks[0].words().begin(), ranks[0].words().end());
    for (const StepAgreement& rank : ranks) {
      EXPECT_EQ(rank.words().size(), reduced.size());
      for (size_t i = 0; i < reduced.size(); ++i) reduced[i] = std::max(reduced[i], rank.words()[i]);
    }
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const absl::Status status = ranks[rank].Push(reduced);
      decisions[rank] = status.ok() ? ranks[rank].decision() : status;
    }
  }
  return decisions;
}

Decisions AgreeOnAll(const std::vector<StepReport>& seen) {
  return AgreeOnAll(std::vector<absl::StatusOr<StepReport>>(seen.begin(), seen.end()));
}

// Returns the reports of 16 ranks, all of which have every sample.
std::vector<StepReport> AllThere(MissingPolicy policy = MissingPolicy::kStrict, int32_t samples = 5) {
  StepReport step{.policy = policy, .geometry_fingerprint = 0xFEDCBA9876543210u};
  for (int32_t i = 0; i < samples; ++i) {
    step.samples.push_back({.sample = absl::StrCat("math/", i),
                            .num_tokens = 100 + i,
                            .content_id = 0x8000000000000000u + i,
                            .oldest_weight_version = -1 + i,
                            .newest_weight_version = 7 + i});
  }
  return std::vector<StepReport>(16, step);
}

void ExpectSame(const Decisions& decisions) {
  for (const auto& decision : decisions) {
    ASSERT_EQ(decision.status(), decisions[0].status());
    if (decision.ok()) {
      EXPECT_EQ(*decision, *decisions[0]);
    }
  }
}

TEST(Agreement, AllReplay) {
  for (MissingPolicy policy : {MissingPolicy::kStrict, MissingPolicy::kLive, MissingPolicy::kDrop}) {
    const Decisions decisions = AgreeOnAll(AllThere(policy));
    ExpectSame(decisions);
    ASSERT_OK(decisions[0]);
    EXPECT_EQ(decisions[0]->replayed, 5);
    EXPECT_EQ(decisions[0]->fallen_back, 0);
    const SampleDecision expected{
        .num_tokens = 102, .content_id = 0x8000000000000002u, .oldest_weight_version = 1, .newest_weight_version = 9};
    EXPECT_EQ(decisions[0]->samples[2], expected);
  }
}

TEST(Agreement, NoSamples) {
  const Decisions decisions = AgreeOnAll(AllThere(MissingPolicy::kStrict, 0));
  ExpectSame(decisions);
  EXPECT_OK(decisions[0]);
}

TEST(Agreement, OneRankMissesASample) {
  for (MissingPolicy policy : {MissingPolicy::kStrict, MissingPolicy::kLive, MissingPolicy::kDrop}) {
    std::vector<StepReport> seen = AllThere(policy);
    seen[13].samples[3] = {.sample = "math/3", .status = SampleStatus::kLost};
    const Decisions decisions = AgreeOnAll(seen);
    ExpectSame(decisions);
    if (policy == MissingPolicy::kStrict) {
      EXPECT_EQ(decisions[0].status().code(), kFailed);
      EXPECT_EQ(GetErrorDetail(decisions[0].status())->sample, "math/3");
      EXPECT_THAT(decisions[0].status().message(), HasSubstr("LOST, first on rank 13; 1 of 5"));
      continue;
    }
    ASSERT_OK(decisions[0]);
    const SampleDecision& fallen = decisions[0]->samples[3];
    EXPECT_EQ(fallen.action, policy == MissingPolicy::kLive ? StepAction::kLive : StepAction::kDrop);
    EXPECT_EQ(fallen.status, SampleStatus::kLost);
    EXPECT_EQ(fallen.missing_on, 13);
    EXPECT_EQ(fallen.num_tokens, 103);
    const std::map<SampleStatus, int64_t> counts = {{SampleStatus::kOk, 4}, {SampleStatus::kLost, 1}};
    EXPECT_EQ(decisions[0]->counts, counts);
    EXPECT_EQ(decisions[0]->replayed, 4);
    EXPECT_EQ(decisions[0]->fallen_back, 1);
  }
}

TEST(Agreement, OtherContentIsAnErrorOnAllRanks) {
  struct Case {
    std::function<void(SampleReport&)> change;
    Reason reason;
    const char* says;
  };
  const std::vector<Case> cases = {
      {[](SampleReport& s) { s.content_id = 17; }, Reason::kConflictingRows,
       "content_id: of sample math/2 is 9223372036854775810 on one rank and 17 on another"},
      {[](SampleReport& s) { s.num_tokens = 99; }, Reason::kRowCount,
       "num_tokens: of sample math/2 is 99 on one rank and 102"},
  };
  for (const Case& given : cases) {
    std::vector<StepReport> seen = AllThere(MissingPolicy::kLive);
    given.change(seen[5].samples[2]);
    seen[6].samples[2].status = SampleStatus::kNotFound;
    const Decisions decisions = AgreeOnAll(seen);
    ExpectSame(decisions);
    EXPECT_THAT(decisions[0], Fails(kFailed, given.reason));
    EXPECT_EQ(GetErrorDetail(decisions[0].status())->sample, "math/2");
    EXPECT_THAT(decisions[0].status().message(), HasSubstr(given.says));
  }
}

// A value that a rank does not know, or that it reports for a sample that it lacks, is not compared.
TEST(Agreement, WhatIsNotKnownIsNotCompared) {
  std::vector<StepReport> seen = AllThere(MissingPolicy::kLive);
  seen[3].samples[1] = {.sample = "math/1"};
  seen[4].samples[2].status = SampleStatus::kTokensMismatch;
  seen[4].samples[2].content_id = 1;
  const Decisions decisions = AgreeOnAll(seen);
  ExpectSame(decisions);
  ASSERT_OK(decisions[0]);
  EXPECT_EQ(decisions[0]->samples[1].content_id, 0x8000000000000001u);
  EXPECT_EQ(decisions[0]->samples[2].status, SampleStatus::kTokensMismatch);
}

TEST(Agreement, ByHandleOrByName) {
  std::vector<StepReport> seen = AllThere();
  for (SampleReport& sample : seen[9].samples) {
    sample.handle = SampleHandle(sample.sample);
    sample.sample.clear();
  }
  EXPECT_OK(AgreeOnAll(seen)[9]);
}

TEST(Agreement, RanksOfOtherSteps) {
  const std::vector<std::function<void(StepReport&)>> changes = {
      [](StepReport& step) { step.samples.pop_back(); },
      [](StepReport& step) { step.samples.clear(); },
      [](StepReport& step) { step.policy = MissingPolicy::kDrop; },
      [](StepReport& step) { std::swap(step.samples[0], step.samples[4]); },
      [](StepReport& step) { step.samples[3].sample = "other"; },
  };
  for (const auto& change : changes) {
    std::vector<StepReport> seen = AllThere();
    change(seen[7]);
    const Decisions decisions = AgreeOnAll(seen);
    ExpectSame(decisions);
    EXPECT_THAT(decisions[0], Fails(kFailed, Reason::kField));
  }
  std::vector<StepReport> seen = AllThere();
  seen[15].geometry_fingerprint = 1;
  const Decisions decisions = AgreeOnAll(seen);
  ExpectSame(decisions);
  EXPECT_THAT(decisions[0], Fails(kFailed, Reason::kGeometryMismatch));
}

TEST(Agreement, ARankWhoseSourceFailed) {
  std::vector<StepReport> seen = AllThere(MissingPolicy::kLive);
  seen[2].source_failed = seen[9].source_failed = true;
  Decisions decisions = AgreeOnAll(seen);
  ExpectSame(decisions);
  ASSERT_OK(decisions[0]);
  EXPECT_EQ(decisions[0]->counts[SampleStatus::kUnspecified], 5);
  EXPECT_EQ(decisions[0]->samples[0].missing_on, 2);
  for (StepReport& step : seen) step.policy = MissingPolicy::kStrict;
  decisions = AgreeOnAll(seen);
  ExpectSame(decisions);
  EXPECT_EQ(decisions[0].status().code(), kFailed);
  EXPECT_THAT(decisions[0].status().message(), HasSubstr("SOURCE_FAILED, first on rank 2; 5 of 5"));
}

TEST(Agreement, ARankThatIsWrongTellsTheOthers) {
  const std::vector<StepReport> right = AllThere();
  std::vector<absl::StatusOr<StepReport>> seen(right.begin(), right.end());
  seen[4] = absl::InvalidArgumentError("no list");
  const Decisions decisions = AgreeOnAll(seen);
  for (size_t rank = 0; rank < decisions.size(); ++rank) {
    EXPECT_EQ(decisions[rank].status().code(), rank == 4 ? absl::StatusCode::kInvalidArgument : kFailed);
  }
  EXPECT_THAT(decisions[0], Fails(kFailed, Reason::kField));
  EXPECT_THAT(decisions[0].status().message(), HasSubstr("rank 4 cannot take part"));
}

TEST(Agreement, DecidesAtTheEndAndNothingIsPushedThen) {
  for (int32_t samples : {0, 2}) {
    StepAgreement agreement(0, AllThere(MissingPolicy::kStrict, samples)[0]);
    while (!agreement.words().empty()) {
      EXPECT_THAT(agreement.decision(), Fails(kFailed, Reason::kField));
      const std::vector<int64_t> words(agreement.words().begin(), agreement.words().end());
      ASSERT_OK(agreement.Push(words));
    }
    EXPECT_THAT(agreement.Push({}), Fails(kFailed, Reason::kField));
    ASSERT_OK_AND_ASSIGN(const StepDecision decision, agreement.decision());
    EXPECT_EQ(decision.replayed, samples);
  }
  StepAgreement failed(0, absl::InternalError("no step"));
  const std::vector<int64_t> words(failed.words().begin(), failed.words().end());
  EXPECT_EQ(failed.Push(words).code(), absl::StatusCode::kInternal);
  EXPECT_THAT(failed.Push({}), Fails(kFailed, Reason::kField));
  EXPECT_THAT(failed.decision(), Fails(kFailed, Reason::kField));
}

TEST(Agreement, OtherVersionsAndOddWords) {
  StepAgreement one(0, AllThere()[0]), other(1, AllThere()[0]);
  EXPECT_THAT(one.Push({}), Fails(absl::StatusCode::kInvalidArgument, Reason::kLength));
  std::vector<int64_t> words(one.words().begin(), one.words().end());
  ++words[0];  // As a rank of the next version would send.
  EXPECT_THAT(one.Push(words), Fails(kFailed, Reason::kVersionMismatch));
  EXPECT_TRUE(one.words().empty());
}

// Computes slowly and simply what the ranks must decide.
absl::StatusOr<StepDecision> Reference(const std::vector<StepReport>& seen) {
  StepDecision decision;
  const size_t samples = seen[0].samples.size();
  for (size_t i = 0; i < samples; ++i) {
    SampleDecision said;
    int64_t worst = 1;
    for (size_t rank = 0; rank < seen.size(); ++rank) {
      const SampleReport& own = seen[rank].samples[i];
      const bool failed = seen[rank].source_failed;
      if (failed || own.status != SampleStatus::kOk) {
        if (!said.missing_on) said.missing_on = rank;
        worst = std::max(worst, failed ? 99 : int64_t(own.status));
        continue;
      }
      const auto same = [](auto& all, const auto& value) {
        if (!value) return true;
        if (!all) all = value;
        return all == value;
      };
      if (!same(said.num_tokens, own.num_tokens) || !same(said.content_id, own.content_id)) {
        return absl::FailedPreconditionError(own.sample);
      }
      for (auto version : {own.oldest_weight_version, own.newest_weight_version}) {
        if (!version) continue;
        said.oldest_weight_version = std::min(said.oldest_weight_version.value_or(*version), *version);
        said.newest_weight_version = std::max(said.newest_weight_version.value_or(*version), *version);
      }
    }
    said.status = worst == 99 ? SampleStatus::kUnspecified : static_cast<SampleStatus>(worst);
    const StepAction fallback = seen[0].policy == MissingPolicy::kDrop ? StepAction::kDrop : StepAction::kLive;
    said.action = said.missing_on ? fallback : StepAction::kReplay;
    ++(said.missing_on ? decision.fallen_back : decision.replayed);
    ++decision.counts[said.status];
    decision.samples.push_back(said);
  }
  for (size_t i = 0; seen[0].policy == MissingPolicy::kStrict && i < samples; ++i) {
    if (decision.samples[i].missing_on) return absl::FailedPreconditionError(seen[0].samples[i].sample);
  }
  return decision;
}

// Sets both weight versions or neither, so that the oldest one of a rank is never above its newest one.
SampleReport RandomSample(int32_t number, std::mt19937& random) {
  const auto rarely = [&random](int32_t times) { return random() % times == 0; };
  SampleReport seen{.sample = absl::StrCat("s", number)};
  if (rarely(40)) seen.status = static_cast<SampleStatus>(1 + random() % 9);
  if (!rarely(10)) seen.num_tokens = number + rarely(120);
  if (!rarely(10)) seen.content_id = (number % 2 == 0 ? 0 : ~uint64_t{0}) ^ static_cast<uint64_t>(rarely(120));
  if (!rarely(10)) {
    seen.oldest_weight_version = static_cast<int64_t>(random() % 5) - 1;
    seen.newest_weight_version = *seen.oldest_weight_version + random() % 3;
  }
  return seen;
}

TEST(Agreement, AsTheReference) {
  std::mt19937 random(1);
  int32_t agreed = 0, failed = 0;
  for (int32_t round = 0; round < 600; ++round) {
    std::vector<StepReport> seen(1 + random() % 6);
    const size_t samples = random() % 8;
    const auto policy = static_cast<MissingPolicy>(random() % 3);
    for (StepReport& step : seen) {
      step.policy = policy;
      step.source_failed = random() % 30 == 0;
      for (size_t i = 0; i < samples; ++i) step.samples.push_back(RandomSample(i, random));
    }
    const absl::StatusOr<StepDecision> expected = Reference(seen);
    const Decisions decisions = AgreeOnAll(seen);
    ExpectSame(decisions);
    ASSERT_EQ(decisions[0].ok(), expected.ok()) << decisions[0].status() << expected.status();
    ++(expected.ok() ? agreed : failed);
    if (expected.ok()) {
      EXPECT_EQ(*decisions[0], *expected);
    } else {
      EXPECT_EQ(GetErrorDetail(decisions[0].status())->sample, expected.status().message());
    }
  }
  EXPECT_GT(agreed, 100);
  EXPECT_GT(failed, 100);
}

}  // namespace
}  // namespace routing_replay::trainer
