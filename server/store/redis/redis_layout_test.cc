#include "server/store/redis/redis_layout.h"

#include <gmock/gmock.h>

#include "server/store/redis/redis_failure_fixture.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class RedisLayoutTest : public RedisFailureTest {
 protected:
  absl::Status Claim(const std::string& prefix) {
    return ClaimRedisLayout(*Connect(), RedisKeys(prefix), Clock::Real().Now() + std::chrono::seconds(30));
  }
};

TEST_F(RedisLayoutTest, ALayoutThatIsNotKnownIsRefusedByName) {
  EXPECT_OK(Claim("a"));
  EXPECT_OK(Claim("a"));
  EXPECT_EQ(Ask(RedisCommand({"GET", "a:layout"})).text, "1");
  EXPECT_EQ(Ask(RedisCommand({"TTL", "a:layout"})).integer, -1);
  Ask(RedisCommand({"SET", "a:layout", "2"}));
  const absl::Status refused = Claim("a");
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("a:layout"), HasSubstr("'2'"), HasSubstr("knows 1")));
  EXPECT_EQ(Ask(RedisCommand({"GET", "a:layout"})).text, "2");
  EXPECT_OK(Claim("b"));
}

TEST_F(RedisLayoutTest, PrefixesAreApart) {
  const auto with = [&](const std::string& prefix) {
    return NewRedisStore("redis", Connect(), {.clock = &clock_, .prefix = prefix});
  };
  const auto a = with("team/a"), b = with("team/b");
  for (Store* store : {a.get(), b.get()}) ASSERT_OK(store->OpenRun("run", &TestGeometry(), RunOptions{}));
  EXPECT_EQ(Keys("team/a:").size(), Keys("team/b:").size());
  ASSERT_OK(a->DropRun("run"));
  EXPECT_EQ(a->ListRuns()->size(), 0u);
  EXPECT_EQ(b->ListRuns()->size(), 1u);
}

}  // namespace
}  // namespace routing_replay::testing
