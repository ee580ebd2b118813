#include "client/shard/servers.h"

#include <gtest/gtest.h>
#include <limits.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

// Returns the place tag of this machine in a list of members. The members are never called, so they need not exist.
std::string TagHere(const std::string& members) {
  const auto servers = Servers::Connect({.endpoint = absl::StrCat("shard:", members)});
  EXPECT_OK(servers);
  return servers.ok() ? (*servers)->tag_here() : "";
}

TEST(ServersTest, TheMemberOfThisMachineIsKnownByItsAddressOrByTheMachinesName) {
  unsetenv(kPlaceVariable);
  EXPECT_EQ(TagHere("127.0.0.1:7400,203.0.113.1:7400"), "127.0.0.1:");
  EXPECT_EQ(TagHere("203.0.113.2:7400,203.0.113.1:7400"), "");
  EXPECT_EQ(TagHere("127.0.0.1:7400,127.0.0.2:7400"), "") << "two are here";
  char own[HOST_NAME_MAX + 1] = {};
  ASSERT_EQ(gethostname(own, HOST_NAME_MAX), 0);
  const std::string name = std::string(own).substr(0, std::string(own).find('.'));
  EXPECT_EQ(TagHere(absl::StrCat(name, ".rl.svc:7400,another.rl.svc:7400")), absl::StrCat(name, ".rl.svc:"));
}

TEST(ServersTest, TheEnvironmentNamesTheMemberOfThisMachine) {
  setenv(kPlaceVariable, "node-2", 1);
  EXPECT_EQ(TagHere("127.0.0.1:7400,node-2:7400"), "node-2:");
  EXPECT_EQ(TagHere("127.0.0.1:7400,node-3:7400"), "");
  unsetenv(kPlaceVariable);
}

TEST(ServersTest, MembersThatNoTagNamesHaveNone) {
  const auto servers = Servers::Connect({.endpoint = "shard:a:1,b:1,b:2,[::1]:7400"});
  ASSERT_OK(servers);
  EXPECT_EQ((*servers)->tags(), std::vector<std::string>{"a:"});
}

}  // namespace
}  // namespace routing_replay::client
