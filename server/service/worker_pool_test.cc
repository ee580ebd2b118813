#include "server/service/worker_pool.h"

#include <atomic>
#include <vector>

#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;

// Holds whoever passes until it is opened.
class Gate {
 public:
  void Pass() {
    MutexLock lock(mutex_);
    ++here_;
    changed_.NotifyAll();
    while (!open_) changed_.Wait(mutex_);
  }
  void Await(int here) {
    MutexLock lock(mutex_);
    while (here_ < here) changed_.Wait(mutex_);
  }
  void Open() {
    MutexLock lock(mutex_);
    open_ = true;
    changed_.NotifyAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int here_ ABSL_GUARDED_BY(mutex_) = 0;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

TEST(WorkerPoolTest, WorkThatWaitsHoldsNoOtherUpUntilAllThreadsDo) {
  Gate gate;
  std::atomic<int> done{0};
  WorkerPool pool({.threads = 3, .waiting = 2});
  for (int i = 1; i <= 3; ++i) {
    ASSERT_OK(pool.Run([&] { gate.Pass(); }));
    gate.Await(i);
  }
  EXPECT_OK(pool.Run([&] { ++done; }));
  EXPECT_OK(pool.Run([&] { ++done; }));
  const absl::Status refused = pool.Run([&] { ++done; });
  EXPECT_THAT(refused, Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  EXPECT_GT(GetErrorDetail(refused)->retry_after_ms.value_or(0), 0);
  EXPECT_EQ(done, 0);
  gate.Open();
  pool.Finish();
  EXPECT_EQ(done, 2);
  EXPECT_THAT(pool.Run([&] { ++done; }), Fails(absl::StatusCode::kUnavailable, Reason::kDraining));
}

TEST(WorkerPoolTest, OneThreadWorksInOrder) {
  std::vector<int> order;
  {
    WorkerPool pool({.threads = 1, .waiting = 100});
    for (int i = 0; i < 50; ++i) ASSERT_OK(pool.Run([&, i] { order.push_back(i); }));
  }
  ASSERT_EQ(order.size(), 50u);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(order[i], i);
}

}  // namespace
}  // namespace routing_replay
