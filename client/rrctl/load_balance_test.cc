#include "client/rrctl/load_balance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace routing_replay::client {
namespace {

TEST(LoadBalanceTest, TheExtremes) {
  const LoadBalance even = BalanceOf({5, 5, 5, 5});
  EXPECT_EQ(even.max_to_mean, 1);
  EXPECT_EQ(even.entropy, 1);
  const LoadBalance one = BalanceOf({0, 8, 0, 0});
  EXPECT_EQ(one.max_to_mean, 4);
  EXPECT_EQ(one.entropy, 0);
  EXPECT_EQ(one.unused, 3);
  EXPECT_EQ(one.busiest, 1);
  EXPECT_EQ(one.busiest_count, 8);
  const LoadBalance none = BalanceOf({0, 0});
  EXPECT_FALSE(none.max_to_mean || none.entropy);
  EXPECT_EQ(BalanceOf({3}).entropy, 1);
}

// Choice by choice, as a definition has it.
TEST(LoadBalanceTest, AgreesWithASlowReference) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<int64_t> counts(2 + random() % 100);
    std::vector<size_t> choices;
    for (int i = 0; i < 1000; ++i) choices.push_back(random() % counts.size() * (random() % 2));
    for (const size_t choice : choices) ++counts[choice];
    double nats = 0;
    for (const size_t choice : choices) nats -= std::log(static_cast<double>(counts[choice]) / 1000) / 1000;
    const LoadBalance balance = BalanceOf(counts);
    EXPECT_NEAR(*balance.entropy, nats / std::log(static_cast<double>(counts.size())), 1e-12);
    EXPECT_EQ(balance.choices, 1000);
    EXPECT_EQ(counts[balance.busiest], balance.busiest_count);
  }
}

}  // namespace
}  // namespace routing_replay::client
