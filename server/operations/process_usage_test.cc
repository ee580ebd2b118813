#include "server/operations/process_usage.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ctime>

namespace routing_replay::server {
namespace {

TEST(ProcessUsageTest, WhatAProcessHasAtLeast) {
  const ProcessUsage usage = LookAtProcess();
  EXPECT_GT(usage.cpu_seconds, 0);
  EXPECT_GE(usage.threads, 1);
  EXPECT_GT(usage.resident_bytes, 64 << 10);
  EXPECT_GT(usage.virtual_bytes, usage.resident_bytes);
  // Within an hour, by the machine's own clock.
  EXPECT_NEAR(usage.start_time_seconds, static_cast<double>(time(nullptr)), 3600);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(usage.max_fds, static_cast<int64_t>(limit.rlim_cur));
}

TEST(ProcessUsageTest, DescriptorsAreCounted) {
  const int64_t before = LookAtProcess().open_fds;
  const int fd = open("/dev/null", O_RDONLY);
  EXPECT_EQ(LookAtProcess().open_fds, before + 1);
  close(fd);
  EXPECT_EQ(LookAtProcess().open_fds, before);
}

}  // namespace
}  // namespace routing_replay::server
