// Another client of a server under attack, which must not notice the attack.
#ifndef TESTS_SECURITY_BYSTANDER_H_
#define TESTS_SECURITY_BYSTANDER_H_

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "proto/wire/message/grpc_bytes.h"
#include "tests/security/guarded_server.h"
#include "tests/security/load.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

// Appends continuously with the token "other". The server must outlive it. For one thread.
class Bystander {
 public:
  explicit Bystander(const GuardedServer& server)
      : stub_(v1::RoutingReplay::NewStub(server.NewChannel())), load_([this](int i) { return Work(i); }) {}
  ~Bystander() { EXPECT_OK(Stop()); }

  void Await(int more) { load_.Await(more); }
  absl::Status Stop() { return load_.Stop(); }

 private:
  absl::Status Work(int i) {
    if (i == 0) return FromGrpcStatus(OpenRun(*stub_, "other", "bystander"));
    // A pause, because repeated rows count against --run-budget like new ones until the server measures the run again,
    // once a second.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    v1::AppendAck ack;
    return FromGrpcStatus(stub_->Put(NewCall("other").get(), OneAppend("bystander", absl::StrCat(i % 50), 3), &ack));
  }

  const std::unique_ptr<v1::RoutingReplay::Stub> stub_;
  Load load_;
};

}  // namespace routing_replay::testing

#endif  // TESTS_SECURITY_BYSTANDER_H_
