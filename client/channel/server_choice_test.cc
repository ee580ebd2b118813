#include "client/channel/endpoint.h"

#include <cstdio>
#include <fstream>
#include <set>

#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

using std::chrono::milliseconds;
using testing::Fails;

constexpr milliseconds kNow(0);

std::string Present(ServerChoice& choice) { return choice.Wait(kNow)->target; }

TEST(ServerChoiceTest, BeginsAnywhereAndGoesRound) {
  std::set<std::string> first;
  for (uint64_t begin = 0; begin < 6; ++begin) {
    ServerChoice choice("a:1,b:1,c:1", begin);
    EXPECT_FALSE(choice.HasOthers());
    std::vector<std::string> seen;
    for (int i = 0; i < 4; ++i) {
      seen.push_back(Present(choice));
      choice.OnUnavailable(seen.back());
    }
    EXPECT_TRUE(choice.HasOthers());
    first.insert(seen[0]);
    EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), 3u);
    EXPECT_EQ(seen[3], seen[0]);
  }
  EXPECT_EQ(first.size(), 3u);
}

// If many calls report at once that a server is gone, the client moves on by one server only.
TEST(ServerChoiceTest, OneServerIsLeftOnce) {
  ServerChoice choice("a:1,b:1,c:1", 0);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Present(choice), i == 0 ? "dns:///a:1" : "dns:///b:1");
    choice.OnUnavailable("dns:///a:1");
  }
}

TEST(ServerChoiceTest, OneServerStaysAndANameIsManyServers) {
  ServerChoice one("a:1", 7);
  EXPECT_EQ(Present(one), "dns:///a:1");
  one.OnUnavailable("dns:///a:1");
  EXPECT_EQ(Present(one), "dns:///a:1");
  EXPECT_FALSE(one.HasOthers());
  ServerChoice name("dns:///a:1", 7);
  EXPECT_TRUE(name.Wait(kNow)->round_robin);
  EXPECT_TRUE(name.HasOthers());
}

TEST(ServerChoiceTest, TheFileOfAListIsReadAgain) {
  const std::string path = ::testing::TempDir() + "/server_choice";
  std::remove(path.c_str());
  ServerChoice choice("file:" + path, 0);
  EXPECT_THAT(choice.Wait(kNow), Fails(absl::StatusCode::kDeadlineExceeded, Reason::kField));
  choice.OnUnavailable("dns:///a:1");
  std::ofstream(path) << "a:1,b:1\n";
  EXPECT_EQ(Present(choice), "dns:///a:1");
  choice.OnUnavailable("dns:///a:1");
  EXPECT_EQ(Present(choice), "dns:///b:1");
  std::ofstream(path) << "c:1,d:1\n";
  choice.LookAgain();
  EXPECT_EQ(Present(choice), "dns:///c:1");
  // The file has changed, and a call to a server of the earlier list fails: the client begins with the first server of
  // the new list.
  std::ofstream(path) << "e:1,f:1\n";
  choice.OnUnavailable("dns:///c:1");
  EXPECT_EQ(Present(choice), "dns:///e:1");
  for (const char* bad : {"nonsense\n", "g:1,,h:1\n", ""}) {
    std::ofstream(path) << bad;
    choice.LookAgain();
    EXPECT_EQ(Present(choice), "dns:///e:1");
  }
}

TEST(ServerChoiceTest, ABadEndpointIsRejected) {
  EXPECT_THAT(ServerChoice("a:1,a:1", 0).Wait(kNow), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
}

}  // namespace
}  // namespace routing_replay::client
