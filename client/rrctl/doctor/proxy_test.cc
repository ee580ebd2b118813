#include "client/rrctl/doctor/proxy.h"

#include <gtest/gtest.h>

#include <map>

namespace routing_replay::client {
namespace {

Finding Check(const std::map<std::string, std::string>& variables,
              ServerAddress server = {"a.cluster:7400", "a.cluster", "7400"}) {
  return CheckProxy(server, [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  });
}

TEST(ProxyTest, TheFirstVariableThatGrpcReadsIsNamed) {
  EXPECT_EQ(Check({}).verdict, Verdict::kOk);
  const Finding finding = Check({{"http_proxy", "http://p:1"}, {"grpc_proxy", "http://q:2"}});
  EXPECT_EQ(finding.verdict, Verdict::kWarn);
  EXPECT_EQ(finding.facts["variable"], "grpc_proxy");
  EXPECT_EQ(finding.fix, "for them: export no_proxy=a.cluster");
  // gRPC reads none in capitals.
  EXPECT_EQ(Check({{"HTTPS_PROXY", "http://p:1"}}).verdict, Verdict::kOk);
}

TEST(ProxyTest, ExceptionsAreSuffixes) {
  EXPECT_EQ(Check({{"https_proxy", "http://p:1"}, {"no_proxy", "x, .Cluster"}}).verdict, Verdict::kOk);
  EXPECT_EQ(Check({{"https_proxy", "http://p:1"}, {"no_proxy", "b.cluster"}}).verdict, Verdict::kWarn);
  EXPECT_EQ(Check({{"https_proxy", "http://p:1"}, {"no_proxy", ".cluster"}, {"no_grpc_proxy", "x"}}).verdict,
            Verdict::kWarn);
  EXPECT_EQ(Check({{"https_proxy", "http://p:1"}}, {.endpoint = "unix:/s", .unix_path = "/s"}).verdict, Verdict::kOk);
}

TEST(ProxyTest, PasswordsAreNotTold) {
  const Finding finding = Check({{"https_proxy", "http://user:secret@p:1"}});
  EXPECT_EQ(finding.facts["proxy"], "http://…@p:1");
  EXPECT_EQ(finding.what.find("secret"), std::string::npos);
}

TEST(FindingTest, TheWorstVerdictIsTheWhole) {
  const std::vector<Finding> findings = {
      {.server = "a:1", .check = "name", .what = "x"},
      {.server = "a:1", .check = "tls", .verdict = Verdict::kWarn, .what = "y", .fix = "z"}};
  EXPECT_EQ(ToDocument(findings)["verdict"], "warn");
  EXPECT_FALSE(AnyFailed(findings));
  EXPECT_EQ(FindingTable(findings)[1], Document({{"verdict", "warn"}, {"check", "tls"}, {"what", "y. Fix: z"}}));
}

}  // namespace
}  // namespace routing_replay::client
