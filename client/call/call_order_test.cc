#include "client/call/call_order.h"

#include <thread>
#include <vector>

#include "client/call/cancellation.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

TEST(CallOrderTest, CallsAreDoneInTheOrderOfTheirPlaces) {
  CallOrder order;
  std::vector<std::shared_ptr<const CallOrder::Place>> places;
  for (int i = 0; i < 20; ++i) places.push_back(order.Take());
  Mutex mutex;
  std::vector<int> done;
  std::vector<std::thread> threads;
  for (int i = 19; i >= 0; --i) {
    threads.emplace_back([&, i, place = std::move(places[i])]() mutable {
      EXPECT_OK(place->Await());
      {
        MutexLock lock(mutex);
        done.push_back(i);
      }
      place.reset();
    });
  }
  EXPECT_OK(order.AwaitAll());
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(order.empty());
  ASSERT_EQ(done.size(), 20u);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
}

TEST(CallOrderTest, AWaitEndsWithItsCallAndThePlaceIsLeft) {
  CallOrder order;
  auto first = order.Take();
  auto second = order.Take();
  const auto third = order.Take();
  Cancellation call;
  std::thread waiting([&] {
    const CallScope scope(&call);
    EXPECT_EQ(second->Await().code(), absl::StatusCode::kCancelled);
    second.reset();
  });
  call.Cancel();
  waiting.join();
  first.reset();
  EXPECT_OK(third->Await());
  Cancellation late(Clock::Real().Now());
  const CallScope scope(&late);
  EXPECT_EQ(order.AwaitAll().code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace routing_replay::client
