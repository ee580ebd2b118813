#include "client/channel/endpoint.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;

TEST(EndpointTest, GoodOnes) {
  EXPECT_EQ(*GrpcTarget("server:7400"), "dns:///server:7400");
  EXPECT_EQ(*GrpcTarget("10.0.0.1:1"), "dns:///10.0.0.1:1");
  EXPECT_EQ(*GrpcTarget("unix:7400"), "unix:7400");
  EXPECT_EQ(*GrpcTarget("my_host-1.example.org:65535"), "dns:///my_host-1.example.org:65535");
  EXPECT_EQ(*GrpcTarget("[::1]:7400"), "dns:///%5B::1%5D:7400");
  EXPECT_EQ(*GrpcTarget("[fe80::1%eth0]:7400"), "dns:///%5Bfe80::1%25eth0%5D:7400");
  EXPECT_EQ(*GrpcTarget("unix:/run/rr.sock"), "unix:/run/rr.sock");
}

TEST(EndpointTest, BadOnesAreRefused) {
  for (const char* bad : {"", "server", "server:", ":7400", "server:0", "server:65536", "server:74a", "server:-1",
                          "::1:7400", "[::1]", "[::1]:", "[::1", "[server]:7400", "[]:1", "unix:", "a b:7400",
                          "http://server:7400", "server:+7400", "server:7400/"}) {
    EXPECT_THAT(GrpcTarget(bad), Fails(absl::StatusCode::kInvalidArgument, Reason::kField)) << bad;
  }
  EXPECT_THAT(GrpcTarget("unix:/" + std::string(200, 'a')), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
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
  EXPECT_EQ(*ResolveEndpoint("server:7400", milliseconds(0)), "dns:///server:7400");
  EXPECT_THAT(ResolveEndpoint("file:", milliseconds(0)), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_THAT(ResolveEndpoint("file:" + path, milliseconds(0)),
              Fails(absl::StatusCode::kDeadlineExceeded, Reason::kField));
  std::thread writer([&] { std::ofstream(path) << "10.0.0.1:7400\n"; });
  EXPECT_EQ(*ResolveEndpoint("file:" + path, std::chrono::seconds(60)), "dns:///10.0.0.1:7400");
  writer.join();
  std::ofstream(path) << "file:" + path << "\n";
  EXPECT_FALSE(ResolveEndpoint("file:" + path, milliseconds(0)).ok());
}

}  // namespace
}  // namespace routing_replay
