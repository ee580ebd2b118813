// A real server under attack. The token "attacker" may use the run "run"; everything else belongs to others.
#ifndef TESTS_SECURITY_ATTACK_FIXTURE_H_
#define TESTS_SECURITY_ATTACK_FIXTURE_H_

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/wire/message/grpc_bytes.h"
#include "routing_replay/wire/error_detail.h"
#include "tests/security/bystander.h"
#include "tests/security/guarded_server.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

inline constexpr int64_t kMiB = 1 << 20;
// How much memory the server may take in addition to its budget: what OPERATING.md promises for the longest messages
// that this server accepts.
inline constexpr int64_t kBound = 339 * kMiB;
inline constexpr std::chrono::seconds kPatience(20);
inline constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
inline constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

class AttackTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> flags = {}, bool encrypted = false,
             const std::string& program = RR_LIMITED_SERVER) {
    flags.insert(flags.end(), {"--memory-budget", "64MiB", "--max-message-bytes", "8388608"});
    server_ = std::make_unique<GuardedServer>(std::vector<TestToken>{{.token = "attacker"}, {.token = "other"}}, flags,
                                              encrypted, program);
    stub_ = v1::RoutingReplay::NewStub(server_->NewChannel());
    ASSERT_TRUE(OpenRun(*stub_, "attacker", "run").ok());
  }
  absl::Status Put(const v1::AppendRequest& request) {
    v1::AppendAck ack;
    return FromGrpcStatus(stub_->Put(NewCall("attacker").get(), request, &ack));
  }
  int64_t PeakMemory() const { return *ProcessMemory(server_->pid(), "VmHWM"); }
  int Threads() const {
    const std::filesystem::directory_iterator all(absl::StrCat("/proc/", server_->pid(), "/task"));
    return static_cast<int>(std::distance(begin(all), end(all)));
  }
  v1::ServerInfo Info() {
    v1::ServerInfo info;
    EXPECT_TRUE(stub_->GetServerInfo(NewCall("other").get(), {}, &info).ok());
    return info;
  }

  std::unique_ptr<GuardedServer> server_;
  std::unique_ptr<GuardedServer::Stub> stub_;
};

// A message of an Append stream that requests credit.
inline v1::AppendRequest Wish(const std::string& run, int64_t bytes) {
  v1::AppendRequest wish;
  wish.set_run(run);
  wish.set_want_bytes(static_cast<uint64_t>(bytes));
  return wish;
}

// A read that waits for the end of an existing sample.
inline v1::ReadRequest WaitFor(const std::string& run, const std::string& sample) {
  v1::ReadRequest wait;
  wait.set_run(run);
  wait.set_wait(true);
  wait.add_samples()->set_sample(sample);
  return wait;
}

}  // namespace routing_replay::testing

#endif  // TESTS_SECURITY_ATTACK_FIXTURE_H_
