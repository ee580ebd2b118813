// Another client of a server under attack.
#ifndef TESTS_SECURITY_BYSTANDER_H_
#define TESTS_SECURITY_BYSTANDER_H_

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "proto/transport/grpc_status.h"
#include "tests/security/guarded_server.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

// Appends all the time, with the token "other"; the server must outlive it. For one thread.
class Bystander {
 public:
  explicit Bystander(const GuardedServer& server)
      : thread_([this, &server] {
          const auto stub = v1::RoutingReplay::NewStub(server.NewChannel());
          failure_ = FromGrpcStatus(OpenRun(*stub, "other", "bystander"));
          for (int i = 0; failure_.ok() && !stopping_; ++i) {
            v1::AppendAck ack;
            failure_ = FromGrpcStatus(
                stub->Put(NewCall("other").get(), OneAppend("bystander", absl::StrCat(i % 50), 3), &ack));
            ++done_;
            // What is put again counts as new until the server looks what is stored of the run, once a second.
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
        }) {}
  ~Bystander() { EXPECT_OK(Stop()); }

  void Await(int more) {
    const int wanted = done_ + more;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (done_ < wanted && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_GE(done_, wanted);
  }
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

#endif  // TESTS_SECURITY_BYSTANDER_H_
