#include "server/admission/byte_budget.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

using testing::Fails;

TEST(ByteBudgetTest, GivesUpToTheLimitAndTakesBack) {
  ByteBudget budget(100);
  ASSERT_OK_AND_ASSIGN(ByteReservation a, budget.Reserve(60));
  ASSERT_OK_AND_ASSIGN(ByteReservation b, budget.Reserve(40));
  EXPECT_EQ(budget.used(), 100);
  const auto rejected = budget.Reserve(1);
  EXPECT_THAT(rejected, Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  EXPECT_GT(GetErrorDetail(rejected.status())->retry_after_ms.value_or(0), 0);
  EXPECT_EQ(budget.used(), 100);
  a.Release();
  EXPECT_EQ(budget.used(), 40);
  EXPECT_EQ(a.bytes(), 0);
  EXPECT_OK(budget.Reserve(60));
}

TEST(ByteBudgetTest, DetachedBytesStayTaken) {
  ByteBudget budget(100);
  int64_t detached = 0;
  {
    ASSERT_OK_AND_ASSIGN(ByteReservation reservation, budget.Reserve(60));
    detached = reservation.Split(40).Detach();
  }
  EXPECT_EQ(detached, 40);
  EXPECT_EQ(budget.used(), 40);
  budget.Attach(detached).Release();
  EXPECT_EQ(budget.used(), 0);
}

TEST(ByteBudgetTest, NothingAtAllFitsAnywhere) {
  ByteBudget budget(0);
  EXPECT_OK(budget.Reserve(0));
  EXPECT_FALSE(budget.Reserve(1).ok());
}

TEST(ByteBudgetTest, MoreThanTheLimitIsRejectedWithoutOverflow) {
  ByteBudget budget(100);
  EXPECT_FALSE(budget.Reserve(INT64_MAX).ok());
  ASSERT_OK_AND_ASSIGN(ByteReservation a, budget.Reserve(100));
  EXPECT_FALSE(budget.Reserve(INT64_MAX).ok());
}

TEST(ByteBudgetTest, ReservationsMoveSplitAndMerge) {
  ByteBudget budget(100);
  {
    ASSERT_OK_AND_ASSIGN(ByteReservation a, budget.Reserve(70));
    ByteReservation b = a.Split(30);
    EXPECT_EQ(a.bytes(), 40);
    EXPECT_EQ(b.bytes(), 30);
    EXPECT_EQ(budget.used(), 70);
    ByteReservation c;
    c.Merge(std::move(a));
    c.Merge(std::move(b));
    c.Merge(ByteReservation());
    EXPECT_EQ(c.bytes(), 70);
    EXPECT_EQ(a.bytes(), 0);  // NOLINT(bugprone-use-after-move,clang-analyzer-cplusplus.Move): stated in the header.
    ASSERT_OK_AND_ASSIGN(ByteReservation d, budget.Reserve(10));
    d = std::move(c);  // Gives its own 10 back first.
    EXPECT_EQ(budget.used(), 70);
  }
  EXPECT_EQ(budget.used(), 0);
}

TEST(ByteBudgetTest, ThreadsNeverPassTheLimitAndLeaveNothingBehind) {
  ByteBudget budget(1000);
  std::vector<std::thread> threads;
  for (uint32_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&budget, seed] {
      std::mt19937 random(seed);
      std::vector<ByteReservation> held;
      for (int i = 0; i < 5000; ++i) {
        auto reservation = budget.Reserve(random() % 300);
        EXPECT_LE(budget.used(), 1000);
        if (reservation.ok()) held.push_back(*std::move(reservation));
        if (held.size() > 5 || random() % 3 == 0) held.clear();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.used(), 0);
}

}  // namespace
}  // namespace routing_replay::server
