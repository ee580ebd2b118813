#include "server/admission/worker_pool.h"

#include <pthread.h>

#include <atomic>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

using testing::Fails;

// Blocks threads in Pass until it is opened.
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
  int here() {
    MutexLock lock(mutex_);
    return here_;
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
  WorkerPool pool({.threads = 3, .threads_of_an_owner = 3, .waiting_of_an_owner = 2});
  for (int i = 1; i <= 3; ++i) {
    ASSERT_OK(pool.Run("a", [&] { gate.Pass(); }));
    gate.Await(i);
  }
  EXPECT_OK(pool.Run("a", [&] { ++done; }));
  EXPECT_OK(pool.Run("a", [&] { ++done; }));
  const absl::Status rejected = pool.Run("a", [&] { ++done; });
  EXPECT_THAT(rejected, Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  EXPECT_GT(GetErrorDetail(rejected)->retry_after_ms.value_or(0), 0);
  EXPECT_OK(pool.Run("b", [&] { ++done; }));
  EXPECT_EQ(done, 0);
  gate.Open();
  pool.Finish();
  EXPECT_EQ(done, 3);
  EXPECT_THAT(pool.Run("a", [&] { ++done; }), Fails(absl::StatusCode::kUnavailable, Reason::kDraining));
}

TEST(WorkerPoolTest, OneOwnerLeavesThreadsToOthers) {
  Gate gate, other;
  WorkerPool pool({.threads = 4, .threads_of_an_owner = 2, .waiting_of_an_owner = 100});
  for (int i = 0; i < 50; ++i) ASSERT_OK(pool.Run("a", [&] { gate.Pass(); }));
  gate.Await(2);
  for (int i = 1; i <= 2; ++i) {
    ASSERT_OK(pool.Run("b", [&] { other.Pass(); }));
    other.Await(i);
  }
  EXPECT_EQ(gate.here(), 2);
  other.Open();
  gate.Open();
  pool.Finish();
  EXPECT_EQ(gate.here(), 50);
}

TEST(WorkerPoolTest, OwnersTakeTurns) {
  std::vector<std::string> order;
  Gate gate;
  WorkerPool pool({.threads = 1, .threads_of_an_owner = 1, .waiting_of_an_owner = 100});
  ASSERT_OK(pool.Run("c", [&] { gate.Pass(); }));
  gate.Await(1);
  for (const char* work : {"a1", "a2", "a3", "b1", "b2"}) {
    ASSERT_OK(pool.Run({work[0]}, [&order, work] { order.push_back(work); }));
  }
  gate.Open();
  pool.Finish();
  EXPECT_THAT(order, ::testing::ElementsAre("a1", "b1", "a2", "b2", "a3"));
}

// While it lives, no thread can be created: the default stack size is larger than the address space.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t huge;
    EXPECT_EQ(pthread_getattr_default_np(&before_), 0);
    EXPECT_EQ(pthread_attr_init(&huge), 0);
    EXPECT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 50), 0);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
  }
  ~NoThreads() { EXPECT_EQ(pthread_setattr_default_np(&before_), 0); }

 private:
  pthread_attr_t before_;
};

TEST(WorkerPoolTest, WithoutANewThreadTheOthersGoOn) {
  Gate gate;
  std::atomic<int> done{0};
  WorkerPool pool({.threads = 3, .threads_of_an_owner = 3, .waiting_of_an_owner = 2});
  {
    const NoThreads none;
    EXPECT_THAT(pool.Run("a", [&] { ++done; }), Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  }
  ASSERT_OK(pool.Run("a", [&] { gate.Pass(); }));
  gate.Await(1);
  {
    const NoThreads none;
    EXPECT_OK(pool.Run("a", [&] { ++done; }));
  }
  gate.Open();
  pool.Finish();
  EXPECT_EQ(done, 1);
}

}  // namespace
}  // namespace routing_replay::server
