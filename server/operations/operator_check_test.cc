#include "server/operations/operator_check.h"

#include <gtest/gtest.h>

namespace routing_replay::server {
namespace {

class OperatorCheckTest : public ::testing::Test {
 protected:
  absl::StatusCode Ask(const HttpRequest& request, ScopeSet any_of) const {
    return MakeOperatorCheck(config_, open_)(request, request.authorization, any_of).status().code();
  }
  absl::StatusCode Read(const std::string& host) const { return Ask({.host = host}, Scope::kRead | Scope::kAdmin); }

  static constexpr auto kOk = absl::StatusCode::kOk, kRefused = absl::StatusCode::kFailedPrecondition;
  const AccessControl open_;
  ServerConfig config_;
};

// The port asks for no certificate, so whoever comes there is nobody.
TEST_F(OperatorCheckTest, WithCertificatesAloneStrangersAreRefused) {
  const HttpRequest here = {.from_here = true};
  config_.operations_listen = "0.0.0.0:7401";
  EXPECT_EQ(Ask(here, Scope::kAdmin), kOk);
  config_.tls.client_ca = "ca.crt";
  EXPECT_EQ(Ask(here, Scope::kAdmin), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Ask({.authorization = "Bearer any", .from_here = true}, Scope::kRead), absl::StatusCode::kUnauthenticated);
  config_.operations_listen = "127.0.0.1:7401";
  EXPECT_EQ(Ask(here, Scope::kAdmin), kOk);
}

TEST_F(OperatorCheckTest, WithoutTokensThePageOfAnotherNameSeesNothing) {
  config_.listen = {"worker-3:7400", "unix:/run/rr.sock"};
  config_.advertise = "rr.example.org:7400";
  config_.operations_listen = "127.0.0.1:7401";
  for (const char* host : {"", "localhost:7401", "LocalHost.:7401", "127.0.0.1:7401", "[::1]:7401", "[::1]",
                           "10.1.2.3:7401", "[fd00::1]:7401", "10.1.2.3", "rr.example.org", "Worker-3:7401"}) {
    EXPECT_EQ(Read(host), kOk) << host;
  }
  for (const char* host : {"evil.example", "evil.example:7401", "localhost.evil.example:7401", "127.0.0.1.evil.example",
                           "rr.example.org.evil.example", "127.0.0.1@evil.example", "[evil.example]:7401", "::1"}) {
    EXPECT_EQ(Read(host), kRefused) << host;
  }
  EXPECT_EQ(Ask({.host = "evil.example", .from_here = true}, Scope::kAdmin), kRefused);
}

TEST_F(OperatorCheckTest, WithoutTokensChangesComeFromThisMachine) {
  config_.operations_listen = "0.0.0.0:7401";
  EXPECT_EQ(Ask({.host = "10.1.2.3:7401"}, Scope::kAdmin), kRefused);
  EXPECT_EQ(Read("10.1.2.3:7401"), kOk);
  EXPECT_EQ(Ask({.host = "localhost:7401", .from_here = true}, Scope::kAdmin), kOk);
}

}  // namespace
}  // namespace routing_replay::server
