#include "client/rrctl/doctor.h"

#include <gmock/gmock.h>

#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

constexpr std::chrono::milliseconds kTimeout(100);

TEST(ServersTest, EveryKindOfEndpoint) {
  ASSERT_OK_AND_ASSIGN(const auto list, ServersOf("a:1,[fe80::1]:2", kTimeout));
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].endpoint, "a:1");
  EXPECT_EQ(list[1].host, "fe80::1");
  EXPECT_EQ(list[1].port, "2");
  EXPECT_EQ(list[1].endpoint, "[fe80::1]:2");
  ASSERT_OK_AND_ASSIGN(const auto name, ServersOf("dns:///servers:7400", kTimeout));
  EXPECT_EQ(name[0].host, "servers");
  EXPECT_EQ(name[0].endpoint, "dns:///servers:7400");
  ASSERT_OK_AND_ASSIGN(const auto socket, ServersOf("unix:/run/rr", kTimeout));
  EXPECT_EQ(socket[0].unix_path, "/run/rr");
  EXPECT_EQ(socket[0].endpoint, "unix:/run/rr");
  ASSERT_OK_AND_ASSIGN(const auto shard, ServersOf("shard:b:2,a:1", kTimeout));
  ASSERT_EQ(shard.size(), 2u);
  EXPECT_EQ(shard[0].endpoint, "a:1");
}

TEST(ServersTest, WhatIsNone) {
  EXPECT_EQ(ServersOf("nowhere", kTimeout).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ServersOf("file:/nonesuch", kTimeout).status().code(), absl::StatusCode::kDeadlineExceeded);
}

using ::testing::HasSubstr;

v1::ServerInfo Info(const std::string& version) {
  v1::ServerInfo info;
  info.set_version(version);
  info.set_store("memory");
  return info;
}

TEST(ServiceChecksTest, Versions) {
  EXPECT_EQ(CheckVersion(Info(ROUTING_REPLAY_VERSION)).verdict, Verdict::kOk);
  const Finding other = CheckVersion(Info("9.1.0"));
  EXPECT_EQ(other.verdict, Verdict::kWarn);
  EXPECT_EQ(other.fix, "install the packages of release 9.1.0");
}

TEST(ServiceChecksTest, AnswersAndRejections) {
  EXPECT_EQ(CheckService(Info("0.1.0")).verdict, Verdict::kOk);
  v1::ServerInfo draining = Info("0.1.0");
  draining.set_draining(true);
  EXPECT_EQ(CheckService(draining).verdict, Verdict::kWarn);
  EXPECT_THAT(CheckService(absl::UnauthenticatedError("no token")).fix, HasSubstr("--token-file"));
  EXPECT_THAT(CheckService(absl::UnimplementedError("")).fix, HasSubstr("check the port"));
  EXPECT_EQ(CheckService(absl::UnavailableError("")).verdict, Verdict::kFail);
}

TEST(ServiceChecksTest, TransportIsTold) {
  EXPECT_EQ(CheckTransport(std::string("a Unix socket of this machine")).what,
            "appends and reads bypass gRPC and use a Unix socket of this machine");
  const Finding none = CheckTransport(absl::NotFoundError("the server has no direct path"));
  EXPECT_EQ(none.verdict, Verdict::kOk);
  EXPECT_EQ(none.what, "appends and reads go over gRPC: the server has no direct path");
  const Finding closed = CheckTransport(absl::UnavailableError("Connection refused"));
  EXPECT_EQ(closed.verdict, Verdict::kWarn);
  EXPECT_THAT(closed.fix, HasSubstr("7403"));
}

TEST(FindingTest, TheWorstVerdictIsTheWhole) {
  const std::vector<Finding> findings = {
      {.server = "a:1", .check = "name", .what = "x"},
      {.server = "a:1", .check = "tls", .verdict = Verdict::kWarn, .what = "y", .fix = "z"}};
  EXPECT_EQ(ToDocument(findings)["verdict"], "warn");
}

}  // namespace
}  // namespace routing_replay::client
