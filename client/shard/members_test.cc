#include "client/shard/members.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "routing_replay/wire/sample.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

using testing::Fails;

// XXH64, byte by byte, as its specification says.
uint64_t SlowXxh64(const std::string& bytes, uint64_t seed) {
  constexpr uint64_t kP1 = 11400714785074694791u, kP2 = 14029467366897019727u, kP3 = 1609587929392839161u;
  constexpr uint64_t kP4 = 9650029242287828579u, kP5 = 2870177450012600261u;
  const auto rotate = [](uint64_t x, int by) { return x << by | x >> (64 - by); };
  const auto word = [&](size_t at, size_t size) {
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i) value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[at + i])) << (8 * i);
    return value;
  };
  const auto round = [&](uint64_t lane, uint64_t input) { return rotate(lane + input * kP2, 31) * kP1; };
  size_t at = 0;
  uint64_t hash = seed + kP5;
  if (bytes.size() >= 32) {
    uint64_t lanes[4] = {seed + kP1 + kP2, seed + kP2, seed, seed - kP1};
    for (; at + 32 <= bytes.size(); at += 32) {
      for (size_t lane = 0; lane < 4; ++lane) lanes[lane] = round(lanes[lane], word(at + 8 * lane, 8));
    }
    hash = rotate(lanes[0], 1) + rotate(lanes[1], 7) + rotate(lanes[2], 12) + rotate(lanes[3], 18);
    for (const uint64_t lane : lanes) hash = (hash ^ round(0, lane)) * kP1 + kP4;
  }
  hash += bytes.size();
  for (; at + 8 <= bytes.size(); at += 8) hash = rotate(hash ^ round(0, word(at, 8)), 27) * kP1 + kP4;
  for (; at + 4 <= bytes.size(); at += 4) hash = rotate(hash ^ word(at, 4) * kP1, 23) * kP2 + kP3;
  for (; at < bytes.size(); ++at) hash = rotate(hash ^ word(at, 1) * kP5, 11) * kP1;
  hash = (hash ^ hash >> 33) * kP2;
  hash = (hash ^ hash >> 29) * kP3;
  return hash ^ hash >> 32;
}

// Returns the member that stores the samples of a key that is no member's host.
std::string SlowOwner(const std::vector<std::string>& members, const std::string& key) {
  std::vector<std::pair<uint64_t, std::string>> scores;
  for (const std::string& member : members) scores.push_back({SlowXxh64(key, SlowXxh64(member, 0)), member});
  std::sort(scores.begin(), scores.end(),
            [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
  return scores[0].second;
}

std::vector<std::string> MakeMembers(size_t count, std::mt19937_64& random) {
  std::vector<std::string> members;
  for (size_t i = 0; i < count; ++i) {
    members.push_back(absl::StrCat(std::string(random() % 50, 'h'), "host-", i, ".cluster:", 1 + random() % 65535));
  }
  return members;
}

ShardMembers Parse(const std::vector<std::string>& members) {
  auto parsed = ShardMembers::Parse(absl::StrCat("shard:", absl::StrJoin(members, ",")));
  EXPECT_OK(parsed);
  return *std::move(parsed);
}

std::string Owner(const ShardMembers& members, absl::string_view sample) {
  return members.endpoints()[members.PlaceOf(sample)];
}

TEST(ShardMembersTest, OwnersAreThoseOfTheRule) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> members = MakeMembers(1 + random() % 20, random);
    const ShardMembers parsed = Parse(members);
    std::string lines;
    std::vector<std::string> sorted = members;
    std::sort(sorted.begin(), sorted.end());
    for (const std::string& member : sorted) absl::StrAppend(&lines, member, "\n");
    EXPECT_EQ(parsed.fingerprint(), SlowXxh64(lines, 0));
    std::shuffle(members.begin(), members.end(), random);
    const ShardMembers shuffled = Parse(members);
    EXPECT_EQ(shuffled.fingerprint(), parsed.fingerprint());
    for (int i = 0; i < 100; ++i) {
      const std::string name = absl::StrCat("step", round, "/", i);
      EXPECT_EQ(Owner(parsed, name), SlowOwner(members, name));
      EXPECT_EQ(Owner(shuffled, name), Owner(parsed, name));
      EXPECT_EQ(Owner(parsed, absl::StrCat(name, ":7")), Owner(parsed, name));
    }
  }
}

TEST(ShardMembersTest, EachMemberOwnsItsShareAndOnlyItsSamplesMoveWithoutIt) {
  std::mt19937_64 random(2);
  constexpr int kSamples = 40000;
  for (const size_t count : {2, 8, 31}) {
    const std::vector<std::string> members = MakeMembers(count, random);
    const ShardMembers all = Parse(members);
    std::vector<std::string> rest = members;
    rest.pop_back();
    const ShardMembers without = Parse(rest);
    EXPECT_NE(all.fingerprint(), without.fingerprint());
    std::map<std::string, int> shares;
    for (int i = 0; i < kSamples; ++i) {
      const std::string name = absl::StrCat("step1/", i);
      const std::string owner = Owner(all, name);
      ++shares[owner];
      EXPECT_TRUE(owner == members.back() || owner == Owner(without, name));
    }
    const double mean = static_cast<double>(kSamples) / static_cast<double>(count);
    for (const std::string& member : members) EXPECT_NEAR(shares[member], mean, 5 * std::sqrt(mean)) << member;
  }
}

TEST(ShardMembersTest, MalformedListsAreRejected) {
  for (const char* endpoint : {"shard:", "shard:a:1,", "shard:a", "shard:a:1,a:1", "shard:a:1,shard:b:1", "a:1",
                               "shard:a:1, b:1", "shard:file:"}) {
    EXPECT_THAT(ShardMembers::Parse(endpoint), Fails(absl::StatusCode::kInvalidArgument, Reason::kField)) << endpoint;
  }
  std::mt19937_64 random(3);
  const std::vector<std::string> many = MakeMembers(ShardMembers::kMaxMembers + 1, random);
  EXPECT_FALSE(ShardMembers::Parse(absl::StrCat("shard:", absl::StrJoin(many, ","))).ok());
  EXPECT_OK(ShardMembers::Parse("shard:a:1,[::1]:2,unix:/tmp/s,file:/tmp/f"));
}

TEST(ShardMembersTest, ATagThatIsTheHostOfOneMemberNamesIt) {
  const ShardMembers members = Parse({"node-1:7400", "node-2:7400", "node-3:7400", "twice:1", "twice:2"});
  for (const char* host : {"node-1", "node-2", "node-3"}) {
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(Owner(members, absl::StrCat(host, ":prompt-", i, "/0")), absl::StrCat(host, ":7400"));
    }
  }
  const std::vector<std::string>& all = members.endpoints();
  for (const char* tag : {"twice", "node", "node-11", "prompt-7"}) {
    EXPECT_EQ(Owner(members, absl::StrCat(tag, ":1/0")), SlowOwner(all, tag));
  }
  EXPECT_EQ(Owner(members, ":odd"), SlowOwner(all, ""));
}

TEST(ShardMembersTest, HandlesTellTheirPlace) {
  std::mt19937_64 random(4);
  const ShardMembers members = Parse(MakeMembers(ShardMembers::kMaxMembers, random));
  const ShardMembers fewer = Parse({"a:1", "b:1"});
  for (int i = 0; i < 500; ++i) {
    const std::string name = absl::StrCat("step1/", i);
    const int64_t handle = members.HandleOf(name);
    EXPECT_GT(handle, 0);
    EXPECT_EQ(BareHandle(handle), SampleHandle(name));
    EXPECT_EQ(*members.PlaceOfHandle(handle), members.PlaceOf(name));
    const auto bare = members.PlaceOfHandle(SampleHandle(name));
    EXPECT_THAT(bare.status(), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
    EXPECT_THAT(bare.status().message(), ::testing::HasSubstr("run.handle(id)"));
    EXPECT_EQ(fewer.PlaceOfHandle(handle).ok(), members.PlaceOf(name) < 2);
  }
}

TEST(ShardMembersTest, AForkMustBeWhereItsParentIs) {
  std::mt19937_64 random(5);
  const ShardMembers members = Parse(MakeMembers(8, random));
  for (const std::string parent : {"prompt-7", "prompt-7:0", "node-3:prompt-7/0"}) {
    const std::string tag = parent.substr(0, parent.find(':'));
    EXPECT_OK(members.CheckFork(absl::StrCat(tag, ":fork/1"), parent));
    int i = 0;
    while (members.PlaceOf(absl::StrCat("fork/", i)) == members.PlaceOf(parent)) ++i;
    const absl::Status rejected = members.CheckFork(absl::StrCat("fork/", i), parent);
    EXPECT_THAT(rejected, Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
    EXPECT_THAT(rejected.message(), ::testing::HasSubstr(absl::StrCat("begin the fork's id with \"", tag, ":\"")));
  }
}

}  // namespace
}  // namespace routing_replay::client
