#include "client/rrctl/doctor/servers.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

constexpr std::chrono::milliseconds kTimeout(100);

TEST(ServersTest, EveryKindOfEndpoint) {
  ASSERT_OK_AND_ASSIGN(const auto list, ServersOf("a:1,[fe80::1%eth0]:2", kTimeout));
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].endpoint, "a:1");
  EXPECT_EQ(list[1].host, "fe80::1%eth0");
  EXPECT_EQ(list[1].port, "2");
  EXPECT_EQ(list[1].endpoint, "[fe80::1%eth0]:2");
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

}  // namespace
}  // namespace routing_replay::client
