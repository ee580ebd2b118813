#include "client/channel/endpoint.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

using testing::Fails;

TEST(EndpointTest, GoodOnes) {
  EXPECT_EQ(*GrpcTarget("server:7400"), "dns:///server:7400");
  EXPECT_EQ(*GrpcTarget("10.0.0.1:1"), "dns:///10.0.0.1:1");
  EXPECT_EQ(*GrpcTarget("unix:7400"), "unix:7400");
  EXPECT_EQ(*GrpcTarget("my_host-1.example.org:65535"), "dns:///my_host-1.example.org:65535");
  EXPECT_EQ(*GrpcTarget("[::1]:7400"), "dns:///%5B::1%5D:7400");
  EXPECT_EQ(*GrpcTarget("unix:/run/rr.sock"), "unix:/run/rr.sock");
}

TEST(EndpointTest, HostsOfTargets) {
  EXPECT_EQ(HostOf(*GrpcTarget("server:7400")), "server");
  EXPECT_EQ(HostOf(*GrpcTarget("10.0.0.1:1")), "10.0.0.1");
  EXPECT_EQ(HostOf(*GrpcTarget("[::1]:7400")), "::1");
}

TEST(EndpointTest, BadOnesAreRejected) {
  for (const char* bad : {"", "server", "server:", ":7400", "server:0", "server:65536", "server:74a", "server:-1",
                          "::1:7400", "[::1]", "[::1]:", "[::1", "[server]:7400", "[]:1", "unix:", "a b:7400",
                          "http://server:7400", "server:+7400", "server:7400/"}) {
    EXPECT_THAT(GrpcTarget(bad), Fails(absl::StatusCode::kInvalidArgument, Reason::kField)) << bad;
  }
  EXPECT_THAT(GrpcTarget("unix:/" + std::string(200, 'a')), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
}

TEST(EndpointTest, SeveralServers) {
  using Targets = std::vector<ServerTarget>;
  EXPECT_EQ(*ServerTargets("a:1,[::1]:2,10.0.0.1:3"),
            (Targets{{"dns:///a:1"}, {"dns:///%5B::1%5D:2", false, "dns:///10.0.0.1:3"}, {"dns:///10.0.0.1:3"}}));
  EXPECT_EQ(*ServerTargets("unix:/run/rr.sock"), Targets{{"unix:/run/rr.sock"}});
  EXPECT_EQ(*ServerTargets("dns:///servers.example.org:7400"), (Targets{{"dns:///servers.example.org:7400", true}}));
  EXPECT_EQ(*ServerTargets("dns:7400"), Targets{{"dns:///dns:7400"}});
}

TEST(EndpointTest, AListIsJudgedByItsMembersElsewhere) {
  ASSERT_OK_AND_ASSIGN(const auto targets, ServerTargets("localhost:1,server:2,127.0.0.1:3"));
  for (const ServerTarget& target : targets) {
    EXPECT_EQ(target.judged(), "dns:///server:2");
  }
  EXPECT_EQ(ServerTargets("localhost:1,127.0.0.1:3")->at(1).judged(), "dns:///127.0.0.1:3");
  EXPECT_EQ(ServerTargets("server:1,10.0.0.1:3")->at(1).judged(), "dns:///10.0.0.1:3");
}

TEST(EndpointTest, BadListsAreRejectedByTheMemberThatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"a:1,b", "\"b\" has no port"},
      {"a:1,", "\"\" has no port"},
      {",a:1", "\"\" has no port"},
      {"a:1,,b:2", "\"\" has no port"},
      {"a:1, b:2", "\" b:2\" has no host name"},
      {"a:1,b:2,a:1", "\"a:1\" is in the list"},
      {"a:1,unix:/s", "\"unix:/s\" is a socket"},
      {"unix:/s,a:1", "\"unix:/s\" is a socket"},
      {"a:1,file:/f", "\"file:/f\" has no port"},
      {"a:1,dns:///b:2", "\"dns:///b:2\" has no port"},
      {"https://a:1", "\"https://a:1\" has no port"},
      {"dns:///a:1,b:2", "\"dns:///a:1,b:2\" is a list of names"},
      {"dns:///a", "\"a\" has no port"},
      {"dns:///", "\"\" has no port"},
  };
  for (const auto& [endpoint, why] : bad) {
    const auto targets = ServerTargets(endpoint);
    EXPECT_THAT(targets, Fails(absl::StatusCode::kInvalidArgument, Reason::kField)) << endpoint;
    EXPECT_NE(targets.status().message().find(why), absl::string_view::npos) << targets.status();
  }
}

TEST(EndpointTest, TheEnvironmentIsAskedLast) {
  ::setenv(kEndpointVariable, "from-environment:1", 1);
  EXPECT_EQ(*EndpointOrEnvironment("given:2"), "given:2");
  EXPECT_EQ(*EndpointOrEnvironment(""), "from-environment:1");
  ::unsetenv(kEndpointVariable);
  EXPECT_THAT(EndpointOrEnvironment(""), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
}

TEST(EndpointTest, AFileIsWaitedFor) {
  using std::chrono::milliseconds;
  const std::string path = ::testing::TempDir() + "/endpoint";
  std::remove(path.c_str());
  using Targets = std::vector<ServerTarget>;
  EXPECT_EQ(*ResolveEndpoint("server:7400", milliseconds(0)), Targets{{"dns:///server:7400"}});
  EXPECT_THAT(ResolveEndpoint("file:", milliseconds(0)), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_THAT(ResolveEndpoint("file:" + path, milliseconds(0)),
              Fails(absl::StatusCode::kDeadlineExceeded, Reason::kField));
  std::thread writer([&] { std::ofstream(path) << "10.0.0.1:7400,[::1]:1\n"; });
  EXPECT_EQ(*ResolveEndpoint("file:" + path, std::chrono::seconds(60)),
            (Targets{{"dns:///10.0.0.1:7400"}, {"dns:///%5B::1%5D:1", false, "dns:///10.0.0.1:7400"}}));
  writer.join();
  std::ofstream(path) << "file:" + path << "\n";
  EXPECT_FALSE(ResolveEndpoint("file:" + path, milliseconds(0)).ok());
}

}  // namespace
}  // namespace routing_replay::client
