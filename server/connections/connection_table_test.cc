#include "server/connections/accept_loop.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

using std::chrono::milliseconds;

const ConnectionTable::Time kStart{};

Peer PeerAt(const std::string& address) { return {.name = absl::StrCat("ipv4:", address, ":1"), .address = address}; }

sockaddr_storage SocketAddress(const char* text, uint16_t port) {
  sockaddr_storage storage{};
  auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
  auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
  if (inet_pton(AF_INET6, text, &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
  } else {
    EXPECT_EQ(inet_pton(AF_INET, text, &v4.sin_addr), 1);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
  }
  return storage;
}

TEST(PeerOf, IsNamedAsByGrpc) {
  EXPECT_EQ(PeerOf(SocketAddress("10.1.2.3", 77)).name, "ipv4:10.1.2.3:77");
  EXPECT_EQ(PeerOf(SocketAddress("::ffff:10.1.2.3", 77)).name, "ipv4:10.1.2.3:77");
  EXPECT_EQ(PeerOf(SocketAddress("::1", 77)).name, "ipv6:%5B::1%5D:77");
  sockaddr_storage local{};
  local.ss_family = AF_UNIX;
  EXPECT_EQ(PeerOf(local).name, "unix:");
}

TEST(PeerOf, CountsForItsAddressOrNetwork) {
  EXPECT_EQ(PeerOf(SocketAddress("10.1.2.3", 1)).address, PeerOf(SocketAddress("::ffff:10.1.2.3", 2)).address);
  EXPECT_NE(PeerOf(SocketAddress("10.1.2.3", 1)).address, PeerOf(SocketAddress("10.1.2.4", 1)).address);
  EXPECT_EQ(PeerOf(SocketAddress("fd00:1:2:3::1", 1)).address, PeerOf(SocketAddress("fd00:1:2:3:4::9", 2)).address);
  EXPECT_NE(PeerOf(SocketAddress("fd00:1:2:3::1", 1)).address, PeerOf(SocketAddress("fd00:1:2:4::1", 1)).address);
}

TEST(ConnectionTable, HoldsSoManyInAllAndOfAnAddress) {
  ConnectionTable table({.connections = 3, .per_address = 2});
  const auto first = table.Enter(PeerAt("a"), kStart);
  ASSERT_TRUE(first && table.Enter(PeerAt("a"), kStart));
  EXPECT_FALSE(table.Enter(PeerAt("a"), kStart));
  EXPECT_TRUE(table.Enter(PeerAt("b"), kStart));
  EXPECT_FALSE(table.Enter(PeerAt("c"), kStart));
  EXPECT_EQ(table.size(), 3);
  table.Leave(*first);
  table.Leave(*first);
  EXPECT_EQ(table.size(), 2);
  EXPECT_TRUE(table.Enter(PeerAt("a"), kStart));
}

TEST(ConnectionTable, SocketsOfTheMachineHaveNoAddress) {
  ConnectionTable table({.connections = 3, .per_address = 1});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(table.Enter({.name = "unix:", .address = ""}, kStart));
  EXPECT_FALSE(table.Enter({.name = "unix:", .address = ""}, kStart));
}

constexpr int64_t kOpen = 100;
const ConnectionLimits kLimits{.calls_at_a_time = kOpen};

TEST(ConnectionTable, CutsWhoTakesBackWhatItBegins) {
  ConnectionTable table(kLimits);
  const auto attacker = table.Enter(PeerAt("a"), kStart), other = table.Enter(PeerAt("b"), kStart);
  table.SawCalls(*attacker, {.begun = kUnansweredCalls + 2 * kOpen + 1, .done = 0}, kStart + milliseconds(20));
  table.SawCalls(*other, {.begun = 100 * kUnansweredCalls, .done = 100 * kUnansweredCalls - 2 * kOpen}, kStart);
  EXPECT_EQ(table.TakeSuspects(kStart), std::vector<ConnectionTable::Id>{*attacker});
  EXPECT_TRUE(table.TakeSuspects(kStart).empty());
}

TEST(ConnectionTable, CutsSeveralThatDoItTogether) {
  ConnectionTable table(kLimits);
  std::vector<ConnectionTable::Id> ids;
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(table.TakeSuspects(kStart).empty());
    ids.push_back(*table.Enter(PeerAt(absl::StrCat(i)), kStart));
    table.SawCalls(ids.back(), {.begun = 2 * kOpen + kUnansweredCalls / 4 + 1}, kStart + milliseconds(i));
  }
  EXPECT_EQ(table.TakeSuspects(kStart + milliseconds(4)), ids);
}

TEST(ConnectionTable, ConnectionsWithFewSuchCallsStay) {
  ConnectionTable table(kLimits);
  for (int i = 0; i < 100; ++i) {
    table.SawCalls(*table.Enter(PeerAt("a"), kStart), {.begun = 2 * kOpen + kFewCalls - 1}, kStart);
  }
  EXPECT_TRUE(table.TakeSuspects(kStart).empty());
}

TEST(ConnectionTable, SlowlyIsNoAttack) {
  ConnectionTable table(kLimits);
  const auto id = table.Enter(PeerAt("a"), kStart);
  CallCounts counts;
  for (auto now = kStart; now < kStart + 20 * kCallWindow; now += kCallWindow / 4) {
    counts.begun += kUnansweredCalls / 8;
    table.SawCalls(*id, counts, now);
    EXPECT_TRUE(table.TakeSuspects(now).empty());
  }
}

// A connection is examined only if it receives many bytes, so two looks may be an hour apart. The calls that began in
// between do not count as calls of one window.
TEST(ConnectionTable, WhatCameWhileNobodyLookedDoesNotCount) {
  ConnectionTable table(kLimits);
  const auto id = table.Enter(PeerAt("a"), kStart);
  const auto later = kStart + std::chrono::hours(1);
  for (const auto now : {later, later + std::chrono::hours(1)}) {
    table.SawCalls(*id, {.begun = 100 * kUnansweredCalls + (now - kStart).count(), .done = 0}, now);
    EXPECT_TRUE(table.TakeSuspects(now).empty());
  }
}

TEST(ConnectionTable, AfterACutTheAddressComesBackSlowly) {
  ConnectionTable table(kLimits);
  const auto cut = [&](ConnectionTable::Id id, ConnectionTable::Time now) {
    table.SawCalls(id, {.begun = 2 * kUnansweredCalls}, now);
    ASSERT_EQ(table.TakeSuspects(now).size(), 1u);
    table.Leave(id);
  };
  const auto first = table.Enter(PeerAt("a"), kStart), together = table.Enter(PeerAt("a"), kStart);
  cut(*first, kStart);
  cut(*together, kStart);
  EXPECT_FALSE(table.Enter(PeerAt("a"), kStart + kPace - milliseconds(1)));
  EXPECT_TRUE(table.Enter(PeerAt("b"), kStart));
  const auto again = table.Enter(PeerAt("a"), kStart + kPace);
  EXPECT_FALSE(table.Enter(PeerAt("a"), kStart + kPace));
  ASSERT_TRUE(again);
  cut(*again, kStart + kPace);
  EXPECT_FALSE(table.Enter(PeerAt("a"), kStart + 3 * kPace - milliseconds(1)));
  EXPECT_TRUE(table.Enter(PeerAt("a"), kStart + 3 * kPace));
  const auto over = kStart + kPace + 20 * kPace;
  EXPECT_TRUE(table.Enter(PeerAt("a"), over));
  EXPECT_TRUE(table.Enter(PeerAt("a"), over));
}

}  // namespace
}  // namespace routing_replay::server
