#include "server/operations/calls/call_identity.h"

#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

TEST(CallIdentityTest, ARequestIdOfTheClientIsKeptWhereItIsPlain) {
  EXPECT_EQ(RequestId("job-7/rank:3"), "job-7/rank:3");
  for (const std::string& bad : {std::string(""), std::string("a b"), std::string("a\n{}"), std::string(129, 'a')}) {
    const std::string made = RequestId(bad);
    EXPECT_EQ(made.size(), 16u) << bad;
    EXPECT_NE(made, RequestId(bad));
  }
}

TEST(CallIdentityTest, ATraceParentIsKeptWhereItIsValid) {
  const std::string good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  EXPECT_EQ(TraceParent(good), good);
  const char* const kBad[] = {"",
                              "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
                              "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                              "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                              "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                              "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
                              "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n",
                              "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                              "00-0af7651916cd43dd8448eb211c80319\"-b7ad6b7169203331-01"};
  for (const char* bad : kBad) EXPECT_EQ(TraceParent(bad), "") << bad;
}

}  // namespace
}  // namespace routing_replay::testing
