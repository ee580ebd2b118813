#include "client/shard/members.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/shard/places.h"
#include "routing_replay/wire/sample_id.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

using testing::Fails;

// XXH64 as its specification says, byte by byte.
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

std::string SlowOwner(const std::vector<std::string>& members, int64_t handle) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(static_cast<uint64_t>(handle) >> (8 * i)));
  std::vector<std::pair<uint64_t, std::string>> scores;
  for (const std::string& member : members) scores.push_back({SlowXxh64(bytes, SlowXxh64(member, 0)), member});
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

std::string Owner(const ShardMembers& members, int64_t handle) {
  return members.endpoints()[members.NaturalOwner(handle)];
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
      const int64_t handle = SampleHandle(absl::StrCat("step", round, "/", i));
      EXPECT_EQ(Owner(parsed, handle), SlowOwner(members, handle));
      EXPECT_EQ(Owner(shuffled, handle), Owner(parsed, handle));
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
      const int64_t handle = SampleHandle(absl::StrCat("step1/", i));
      const std::string owner = Owner(all, handle);
      ++shares[owner];
      EXPECT_TRUE(owner == members.back() || owner == Owner(without, handle));
    }
    const double mean = static_cast<double>(kSamples) / static_cast<double>(count);
    for (const std::string& member : members) EXPECT_NEAR(shares[member], mean, 5 * std::sqrt(mean)) << member;
  }
}

TEST(ShardMembersTest, ListsThatCannotBeAreRefused) {
  for (const char* endpoint : {"shard:", "shard:a:1,", "shard:a", "shard:a:1,a:1", "shard:a:1,shard:b:1", "a:1",
                               "shard:a:1, b:1", "shard:file:"}) {
    EXPECT_THAT(ShardMembers::Parse(endpoint), Fails(absl::StatusCode::kInvalidArgument, Reason::kField)) << endpoint;
  }
  std::mt19937_64 random(3);
  const std::vector<std::string> many = MakeMembers(ShardMembers::kMaxMembers + 1, random);
  EXPECT_FALSE(ShardMembers::Parse(absl::StrCat("shard:", absl::StrJoin(many, ","))).ok());
  EXPECT_OK(ShardMembers::Parse("shard:a:1,[::1]:2,unix:/tmp/s,file:/tmp/f"));
}

TEST(PlacesTest, AppendsGoWhereTheirSampleIs) {
  std::mt19937_64 random(5);
  Places places(Parse(MakeMembers(8, random)));
  const auto natural = [&](absl::string_view sample) { return places.members().NaturalOwner(SampleHandle(sample)); };
  EXPECT_EQ(places.Route({.sample = "a", .begins = true}, false).place, natural("a"));
  // Begun here, so that nobody need be asked of what goes on.
  EXPECT_EQ(places.Route({.sample = "a"}, false).place, natural("a"));
  EXPECT_EQ(places.Route({.sample = "fork", .prefix_sample = "a"}, false).place, natural("a"));
  EXPECT_EQ(places.Route({.sample = "fork"}, false).place, natural("a"));
  // Not begun here.
  const AppendRoute unknown = places.Route({.sample = "b"}, false);
  EXPECT_EQ(unknown.place, std::nullopt);
  EXPECT_EQ(unknown.search_for, SampleHandle("b"));
  std::vector<std::optional<bool>> found(8, false);
  const auto learn = [&](Producer producer) { return *places.Learn(producer, SampleHandle("b"), found); };
  EXPECT_EQ(learn(Producer::kRollout), std::nullopt);
  EXPECT_EQ(places.Route({.sample = "b"}, true).place, natural("b"));
  EXPECT_EQ(places.Route({.sample = "b"}, false).place, std::nullopt);
  const AppendRoute of_parent = places.Route({.sample = "c", .prefix_sample = "b"}, false);
  EXPECT_EQ(of_parent.search_for, SampleHandle("b"));
  const size_t other = (natural("b") + 1) % 8;
  found[other] = true;
  EXPECT_EQ(learn(Producer::kRollout), other);
  found[natural("b")] = true;
  EXPECT_EQ(learn(Producer::kTrainer), natural("b"));
  EXPECT_EQ(places.Route({.sample = "c", .prefix_sample = "b"}, true).place, other);
  EXPECT_EQ(places.Route({.producer = Producer::kTrainer, .sample = "c", .prefix_sample = "b"}, true).place,
            natural("b"));
}

TEST(PlacesTest, OneThatDidNotAnswerMayHaveIt) {
  Places places(Parse({"a:1", "b:1", "c:1"}));
  const auto name_of = [&](size_t owner) {
    int i = 0;
    while (places.members().NaturalOwner(SampleHandle(absl::StrCat("s/", i))) != owner) ++i;
    return SampleHandle(absl::StrCat("s/", i));
  };
  const int64_t handle = name_of(0);
  std::vector<std::optional<bool>> found = {false, std::nullopt, false};
  EXPECT_EQ(*places.Learn(Producer::kRollout, name_of(1), found), std::nullopt);  // There, or nowhere.
  const auto silent = places.Learn(Producer::kRollout, handle, found);
  EXPECT_EQ(silent.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(silent.status().message(), ::testing::HasSubstr("server b:1, which did not answer"));
  EXPECT_EQ(places.Find(Producer::kRollout, handle), std::nullopt);
  found[0] = true;
  EXPECT_EQ(*places.Learn(Producer::kRollout, handle, found), 0u);
}

TEST(PlacesTest, ForgetsWhatWasNotAskedFor) {
  std::mt19937_64 random(4);
  Places places(Parse(MakeMembers(4, random)), 20);
  places.Remember(Producer::kRollout, 7, 3);
  EXPECT_EQ(places.Find(Producer::kTrainer, 7), std::nullopt);
  for (int64_t handle = 100; handle < 200; ++handle) {
    places.Remember(Producer::kRollout, handle, 1);
    EXPECT_EQ(places.Find(Producer::kRollout, 7), 3u);
    EXPECT_EQ(places.Find(Producer::kRollout, handle), 1u);
  }
  EXPECT_EQ(places.Find(Producer::kRollout, 100), std::nullopt);
  EXPECT_EQ(places.FindOrNatural(Producer::kRollout, 100), places.members().NaturalOwner(100));
  places.Forget(Producer::kRollout, 7);
  EXPECT_EQ(places.Find(Producer::kRollout, 7), std::nullopt);
}

}  // namespace
}  // namespace routing_replay::client
