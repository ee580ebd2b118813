#include "server/operations/descriptor_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace routing_replay::server {
namespace {

TEST(DescriptorLimitTest, IsRaisedToWhatIsAllowed) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit low{.rlim_cur = 64, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(RaiseDescriptorLimit(), static_cast<int64_t>(limit.rlim_max));
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

}  // namespace
}  // namespace routing_replay::server
