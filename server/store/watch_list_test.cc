#include "server/store/watch_list.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace routing_replay::server {
namespace {

constexpr auto kRollout = Producer::kRollout;

TEST(WatchListTest, ConcernsHandleAndProducer) {
  const auto list = std::make_shared<WatchList>();
  int one = 0, other = 0, trainer = 0;
  const auto a = list->Add(7, kRollout, [&] { ++one; });
  const auto b = list->Add(7, kRollout, [&] { ++other; });
  const auto c = list->Add(7, Producer::kTrainer, [&] { ++trainer; });
  list->Notify(8, kRollout);
  EXPECT_EQ(one + other + trainer, 0);
  list->Notify(7, kRollout);
  list->Notify(7, kRollout);
  EXPECT_EQ(one, 1);
  EXPECT_EQ(other, 1);
  EXPECT_EQ(trainer, 0);
  list->NotifyAll();
  EXPECT_EQ(trainer, 1);
}

TEST(WatchListTest, ACallbackMayWatchAgain) {
  const auto list = std::make_shared<WatchList>();
  std::unique_ptr<Store::Watch> second;
  int calls = 0;
  const auto first = list->Add(7, kRollout, [&] { second = list->Add(7, kRollout, [&] { ++calls; }); });
  list->Notify(7, kRollout);
  EXPECT_EQ(calls, 0);
  list->Notify(7, kRollout);
  EXPECT_EQ(calls, 1);
}

TEST(WatchListTest, EndingAWatchWaitsForItsCallback) {
  const auto list = std::make_shared<WatchList>();
  std::atomic<bool> entered{false}, left{false}, release{false};
  auto watch = list->Add(7, kRollout, [&] {
    entered = true;
    while (!release) std::this_thread::yield();
    left = true;
  });
  std::thread notifier([&] { list->Notify(7, kRollout); });
  while (!entered) std::this_thread::yield();
  std::thread releaser([&] { release = true; });
  watch.reset();
  EXPECT_TRUE(left);
  notifier.join();
  releaser.join();
}

}  // namespace
}  // namespace routing_replay::server
