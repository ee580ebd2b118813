// Work that a test repeats on another thread.
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

// Calls `work` with the number of the round, on a thread of its own, until it fails or Stop is called. For one thread.
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
  // Returns the error that ended the work, or OK.
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
