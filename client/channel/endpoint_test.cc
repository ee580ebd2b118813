#include "client/channel/endpoint.h"

#include <cstdlib>

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

}  // namespace
}  // namespace routing_replay
