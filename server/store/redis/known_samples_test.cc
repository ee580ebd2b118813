#include "server/store/redis/known_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

std::shared_ptr<const SampleContent> ContentOf(int64_t revision, int64_t rows, bool sealed) {
  SampleContent content{TokenChecks(32)};
  content.tokens.Extend({{0, rows}, {}, {}}, std::nullopt);
  content.revision = revision;
  if (sealed) content.num_tokens = rows + 1;
  return std::make_shared<const SampleContent>(std::move(content));
}

RedisManifest ManifestOf(int64_t version, int64_t birth, std::shared_ptr<const SampleContent> content) {
  return {{.version = version, .birth = birth}, std::move(content)};
}

TEST(KnownSamplesTest, OnlyThisVersionOfThisBirthIsKnown) {
  KnownSamples known(10, 1 << 20);
  const auto content = ContentOf(0, 5, false);
  EXPECT_FALSE(known.Last("k"));
  known.PutContent("k", ManifestOf(7, 3, content));
  ASSERT_TRUE(known.Last("k"));
  EXPECT_EQ(known.Last("k")->stamp.version, 7);
  EXPECT_EQ(known.Last("k")->content, content);
  EXPECT_EQ(known.Content("k", 7, 3), content);
  EXPECT_EQ(known.Content("k", 8, 3), nullptr);
  EXPECT_EQ(known.Content("k", 7, 4), nullptr);
  EXPECT_EQ(known.Content("other", 7, 3), nullptr);
  known.PutContent("k", ManifestOf(6, 3, ContentOf(0, 4, false)));  // Read before the other one, and late.
  EXPECT_EQ(known.Content("k", 7, 3), content);
  known.Forget("k");
  EXPECT_FALSE(known.Last("k"));
}

TEST(KnownSamplesTest, WhatWasNotUsedForLongestGoesFirst) {
  const auto content = ContentOf(0, 5, false);
  KnownSamples by_count(3, 1 << 20);
  for (const char* key : {"a", "b", "c"}) by_count.Acknowledge(key, {.birth = 1});
  EXPECT_TRUE(by_count.Acknowledged("a"));
  by_count.Acknowledge("d", {.birth = 1});
  EXPECT_TRUE(by_count.Acknowledged("a"));
  EXPECT_FALSE(by_count.Acknowledged("b"));
  KnownSamples by_bytes(1000, 10 * content->metadata_bytes());
  for (int i = 0; i < 100; ++i) {
    by_bytes.Acknowledge(absl::StrCat(i), {.birth = 1});
    by_bytes.PutContent(absl::StrCat(i), ManifestOf(1, 1, content));
  }
  int kept = 0;
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(by_bytes.Acknowledged(absl::StrCat(i)));
    kept += by_bytes.Last(absl::StrCat(i)).has_value();
  }
  EXPECT_EQ(kept, 10);
  EXPECT_TRUE(by_bytes.Last("99").has_value());
}

TEST(KnownSamplesTest, WhatIsKeptIsKnownAsLongAsTheSampleIsTheSame) {
  KnownSamples known(10, 1 << 20);
  known.NoteKept("k", 4, 1);
  EXPECT_FALSE(known.Acknowledged("k"));
  known.Acknowledge("k", {.birth = 4, .revision = 1});
  EXPECT_EQ(known.Acknowledged("k")->kept_revision, 0);
  known.NoteKept("k", 4, 2);
  known.NoteKept("k", 4, 1);
  known.NoteKept("k", 3, 7);
  known.Acknowledge("k", {.birth = 4, .revision = 3});
  EXPECT_EQ(known.Acknowledged("k")->kept_revision, 2);
  known.Acknowledge("k", {.birth = 5});
  EXPECT_EQ(known.Acknowledged("k")->kept_revision, 0);
}

TEST(KnownSamplesTest, WhatIsLessThanWasAcknowledged) {
  const AcknowledgedSample acknowledged{.birth = 4, .revision = 2, .rows = 10, .sealed = true};
  const auto more = [&](int64_t birth, int64_t revision, int64_t rows, bool sealed) {
    return acknowledged.IsMoreThan(birth, *ContentOf(revision, rows, sealed));
  };
  EXPECT_FALSE(more(4, 2, 10, true));
  EXPECT_TRUE(more(4, 2, 10, false));
  EXPECT_TRUE(more(4, 2, 9, false));
  EXPECT_TRUE(more(4, 1, 20, true));
  EXPECT_FALSE(more(4, 3, 0, false));
  EXPECT_FALSE(more(5, 0, 0, false));  // Another sample's life.
}

}  // namespace
}  // namespace routing_replay::server
