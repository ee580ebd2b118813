#include "server/store/redis/client/redis_cluster.h"

#include "server/store/redis/client/redis_protocol.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

using routing_replay::testing::Fails;
using Type = RedisReply::Type;

RedisReply Integer(int64_t value) { return {.type = Type::kInteger, .integer = value}; }
RedisReply Bulk(std::string text) { return {.type = Type::kBulk, .text = std::move(text)}; }
RedisReply Array(std::vector<RedisReply> elements) { return {.type = Type::kArray, .elements = std::move(elements)}; }
RedisReply Node(std::string host, int64_t port) { return Array({Bulk(std::move(host)), Integer(port), Bulk("id")}); }

// CRC16 computed bit by bit, as in the cluster specification.
int SlowSlot(const std::string& key) {
  unsigned crc = 0;
  for (const char c : key) {
    crc ^= static_cast<unsigned>(static_cast<uint8_t>(c)) << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000) != 0 ? (crc << 1 ^ 0x1021) & 0xffff : crc << 1;
  }
  return static_cast<int>(crc % kRedisSlots);
}

TEST(RedisSlotTest, SpecificationExamples) {
  EXPECT_EQ(RedisSlotOf("123456789"), 0x31c3);
  EXPECT_EQ(RedisSlotOf(""), 0);
  EXPECT_EQ(RedisSlotOf("{user1000}.following"), RedisSlotOf("user1000"));
  EXPECT_EQ(RedisSlotOf("foo{}{bar}"), SlowSlot("foo{}{bar}"));
  EXPECT_EQ(RedisSlotOf("foo{{bar}}zap"), SlowSlot("{bar"));
  EXPECT_EQ(RedisSlotOf("foo{bar}{zap}"), SlowSlot("bar"));
  EXPECT_EQ(RedisSlotOf("foo{bar"), SlowSlot("foo{bar"));
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    std::string key(random() % 30, '\0');
    for (char& c : key) c = static_cast<char>(random());
    std::replace(key.begin(), key.end(), '{', '-');
    EXPECT_EQ(RedisSlotOf(key), SlowSlot(key));
  }
}

TEST(SlotMapTest, ReadsRangesAndReplicas) {
  const RedisReply reply = Array({Array({Integer(0), Integer(5460), Node("10.0.0.1", 7000), Node("10.0.0.4", 7003)}),
                                  Array({Integer(10923), Integer(16383), Node("", 7002)}),
                                  Array({Integer(5461), Integer(5461), Array({RedisReply{}, Integer(7001)})})});
  ASSERT_OK_AND_ASSIGN(const SlotMap map, SlotMap::Parse(reply, "asked"));
  EXPECT_EQ(map.MasterOf(0), (RedisAddress{"10.0.0.1", 7000}));
  EXPECT_EQ(map.MasterOf(5460), (RedisAddress{"10.0.0.1", 7000}));
  EXPECT_EQ(map.MasterOf(5461), (RedisAddress{"asked", 7001}));
  EXPECT_EQ(map.MasterOf(5462), std::nullopt);
  EXPECT_EQ(map.MasterOf(16383), (RedisAddress{"asked", 7002}));
  EXPECT_EQ(map.nodes().size(), 4u);
}

TEST(SlotMapTest, RejectsWhatIsNoMap) {
  const RedisReply cases[] = {
      Array({Integer(1)}),
      Array({Array({Integer(0), Integer(1)})}),
      Array({Array({Integer(-1), Integer(1), Node("h", 1)})}),
      Array({Array({Integer(0), Integer(16384), Node("h", 1)})}),
      Array({Array({Integer(5), Integer(4), Node("h", 1)})}),
      Array({Array({Integer(0), Integer(1), Node("h", 0)})}),
      Array({Array({Integer(0), Integer(1), Node("h", 1), Bulk("x")})}),
  };
  for (const RedisReply& reply : cases) EXPECT_TRUE(absl::IsDataLoss(SlotMap::Parse(reply, "h").status()));
}

TEST(SlotMapTest, SingleServerHasAllSlots) {
  const SlotMap map = SlotMap::Single({"h", 1});
  EXPECT_EQ(map.MasterOf(16383), (RedisAddress{"h", 1}));
  EXPECT_EQ(SlotMap().MasterOf(0), std::nullopt);
}

TEST(RedisErrorTest, Kinds) {
  using Kind = RedisError::Kind;
  const RedisError moved = ParseRedisError("MOVED 3999 127.0.0.1:6381");
  EXPECT_EQ(moved.kind, Kind::kMoved);
  EXPECT_EQ(moved.address, (RedisAddress{"127.0.0.1", 6381}));
  EXPECT_EQ(ParseRedisError("ASK 0 fe80::1:6381").address, (RedisAddress{"fe80::1", 6381}));
  EXPECT_EQ(ParseRedisError("MOVED 1 :6381").address, (RedisAddress{"", 6381}));
  EXPECT_EQ(ParseRedisError("MOVED 1 ?:6381").address, (RedisAddress{"", 6381}));
  for (const char* text : {"MOVED", "MOVED 1", "MOVED x h:1", "MOVED 16384 h:1", "MOVED -1 h:1", "ASK 1 h:0",
                           "ASK 1 h:70000", "ASK 1 h", "ERR", "", "movedx 1 h:1"}) {
    EXPECT_EQ(ParseRedisError(text).kind, Kind::kForCaller) << text;
  }
  for (const char* text : {"TRYAGAIN Multiple keys", "CLUSTERDOWN Hash slot not served", "LOADING Redis is loading",
                           "MASTERDOWN Link", "READONLY You can't write", "BUSY Redis", "NOREPLICAS Not enough"}) {
    EXPECT_EQ(ParseRedisError(text).kind, Kind::kRetry) << text;
    EXPECT_TRUE(absl::IsUnavailable(StatusOfRedisError("GET", text))) << text;
  }
}

TEST(RedisErrorTest, Statuses) {
  for (const char* text : {"NOAUTH Authentication required.", "WRONGPASS invalid", "NOPERM no"}) {
    EXPECT_TRUE(absl::IsPermissionDenied(StatusOfRedisError("GET", text))) << text;
  }
  const absl::Status memory = StatusOfRedisError("SET", "OOM command not allowed when used memory > 'maxmemory'.");
  EXPECT_THAT(memory, Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  EXPECT_GT(GetErrorDetail(memory)->retry_after_ms.value(), 0);
  EXPECT_TRUE(absl::IsUnavailable(StatusOfRedisError("SET", "MISCONF Redis is configured to save")));
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOfRedisError("SET", "WRONGTYPE Operation")));
  EXPECT_LT(StatusOfRedisError("SET", "ERR " + std::string(10000, 'x')).message().size(), 400u);
}

}  // namespace
}  // namespace routing_replay::server
