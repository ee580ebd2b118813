#include "server/store/watch_list.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace routing_replay::server {
namespace {

constexpr auto kRollout = Producer::kRollout;

TEST(WatchListTest, ConcernsHandleProducerAndId) {
  const auto list = std::make_shared<WatchList>();
  int by_id = 0, by_handle = 0, trainer = 0;
  const auto a = list->Add(7, kRollout, "a", [&] { ++by_id; });
  const auto b = list->Add(7, kRollout, "", [&] { ++by_handle; });
  const auto c = list->Add(7, Producer::kTrainer, "a", [&] { ++trainer; });
  list->Notify(8, kRollout, "a");
  list->Notify(7, kRollout, "other");  // The same handle.
  EXPECT_EQ(by_id + trainer, 0);
  EXPECT_EQ(by_handle, 1);
  list->Notify(7, kRollout, "a");
  list->Notify(7, kRollout, "a");
  EXPECT_EQ(by_id, 1);
  EXPECT_EQ(by_handle, 1);
  list->NotifyAll();
  EXPECT_EQ(trainer, 1);
}

TEST(WatchListTest, ACallbackMayWatchAgain) {
  const auto list = std::make_shared<WatchList>();
  std::unique_ptr<Store::Watch> second;
  int calls = 0;
  const auto first = list->Add(7, kRollout, "a", [&] { second = list->Add(7, kRollout, "a", [&] { ++calls; }); });
  list->Notify(7, kRollout, "a");
  EXPECT_EQ(calls, 0);
  list->Notify(7, kRollout, "a");
  EXPECT_EQ(calls, 1);
}

TEST(WatchListTest, EndingAWatchWaitsForItsCallback) {
  const auto list = std::make_shared<WatchList>();
  std::atomic<bool> entered{false}, left{false}, release{false};
  auto watch = list->Add(7, kRollout, "a", [&] {
    entered = true;
    while (!release) std::this_thread::yield();
    left = true;
  });
  std::thread notifier([&] { list->Notify(7, kRollout, "a"); });
  while (!entered) std::this_thread::yield();
  std::thread releaser([&] { release = true; });
  watch.reset();
  EXPECT_TRUE(left);
  notifier.join();
  releaser.join();
}

}  // namespace
}  // namespace routing_replay::server
