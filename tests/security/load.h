// Work that is repeated on another thread during a test.
#ifndef TESTS_SECURITY_LOAD_H_
#define TESTS_SECURITY_LOAD_H_

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "absl/status/status.h"

namespace routing_replay::testing {

// Does `work`, which gets the number of the round, on a thread of its own until it fails or is told to stop. For one
// thread.
class Load {
 public:
  explicit Load(std::function<absl::Status(int)> work)
      : thread_([this, work = std::move(work)] {
          for (int i = 0; !stopping_; ++i) {
            if (absl::Status status = work(i); !status.ok()) {
              failure_ = status;
              return;
            }
            ++done_;
          }
        }) {}
  ~Load() { Stop().IgnoreError(); }

  int done() const { return done_; }
  // Waits for `more` further rounds.
  void Await(int more) const {
    const int wanted = done_ + more;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (done_ < wanted && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_GE(done_, wanted);
  }
  // The error that ended the work; OK if it was told to stop.
  absl::Status Stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
    return failure_;
  }

 private:
  std::atomic<bool> stopping_{false};
  std::atomic<int> done_{0};
  absl::Status failure_;
  std::thread thread_;
};

}  // namespace routing_replay::testing

#endif  // TESTS_SECURITY_LOAD_H_
