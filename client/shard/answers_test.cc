#include "client/shard/answers.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/match.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

constexpr AnswerKind kGood = AnswerKind::kGood, kNoRun = AnswerKind::kNoRun, kAway = AnswerKind::kUnreachable,
                     kRefused = AnswerKind::kRefused;

void Expect(const std::vector<AnswerKind>& answers, Needed needed, std::optional<size_t> failed, bool lost = false) {
  const JointAnswer verdict = JudgeAnswers(answers, needed);
  EXPECT_EQ(verdict.failed, failed);
  EXPECT_EQ(verdict.lost, lost);
}

TEST(AnswersTest, OneThatLostTheRunIsAPartOfTheWhole) {
  Expect({kGood, kNoRun}, Needed::kAll, 1, true);
  Expect({kGood, kNoRun}, Needed::kThoseWithTheRun, std::nullopt);
  Expect({kGood, kNoRun}, Needed::kThoseThatAnswer, std::nullopt);
  Expect({kNoRun, kNoRun}, Needed::kAll, 0);
  Expect({kGood, kGood}, Needed::kAll, std::nullopt);
}

TEST(AnswersTest, OneThatIsAwayIsLeftOutOnlyWhereThatIsAskedFor) {
  Expect({kGood, kAway}, Needed::kThoseThatAnswer, std::nullopt);
  Expect({kGood, kAway}, Needed::kThoseWithTheRun, 1);
  Expect({kNoRun, kGood, kAway}, Needed::kAll, 2);
  Expect({kNoRun, kAway}, Needed::kThoseThatAnswer, 1);
}

TEST(AnswersTest, ARefusalComesFirst) {
  Expect({kNoRun, kAway, kRefused, kGood}, Needed::kThoseThatAnswer, 2);
  Expect({kAway, kRefused}, Needed::kAll, 1);
}

TEST(AnswersTest, ALostRunNamesTheServerAndSaysWhatToDo) {
  const absl::Status lost = LostRunError("a:7400");
  EXPECT_TRUE(absl::IsDataLoss(lost));
  EXPECT_EQ(GetErrorDetail(lost)->reason, Reason::kNoRun);
  EXPECT_TRUE(absl::StrContains(lost.message(), "server a:7400: ")) << lost;
  EXPECT_TRUE(absl::StrContains(lost.message(), "Open the run with its geometry")) << lost;
  EXPECT_EQ(KindOf(lost), kRefused);
}

}  // namespace
}  // namespace routing_replay::client
