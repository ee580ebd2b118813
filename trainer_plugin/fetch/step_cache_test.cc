// Compares fetches through a cache with fetches without one, and counts reads.
#include "trainer_plugin/fetch/step_cache.h"

#include <atomic>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/source.h"
#include "tests/support/random_routes.h"
#include "tests/support/status_matchers.h"
#include "trainer_plugin/fetch/staging_sink.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
using routing_replay::testing::MakeRandomRoutes;
using routing_replay::testing::RandomRoutes;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kPlenty = int64_t{1} << 30;
constexpr int32_t kSamples = 6;

std::string Name(int32_t sample) { return absl::StrCat("s", sample); }
int64_t TokensOf(int32_t sample) { return 40 + 300 * (sample % 3) + sample; }

Clock::Time Soon() { return Clock::Real().Now() + std::chrono::seconds(30); }
Clock::Time AtOnce() { return Clock::Real().Now(); }

std::vector<int32_t> NextOf(CachedFetch& fetch) {
  const auto slices = fetch.Next(Soon());
  EXPECT_OK(slices);
  return slices.ok() ? *slices : std::vector<int32_t>();
}

std::vector<std::string> RowsOf(const StagedRows& staged) {
  std::vector<std::string> rows;
  for (size_t i = 0; i < staged.pieces.size(); ++i) {
    const StagedPiece& piece = staged.pieces[i];
    const size_t end = i + 1 < staged.pieces.size() ? staged.pieces[i + 1].offset : staged.staging.size();
    rows.push_back(absl::StrCat(piece.sequence, " ", piece.layer_begin, "+", piece.layer_count, " ",
                                ToString(piece.rows), " ",
                                std::string(staged.staging.begin() + piece.offset, staged.staging.begin() + end)));
  }
  return rows;
}

class StepCacheTest : public ::testing::Test {
 protected:
  StepCacheTest() {
    for (int32_t i = 0; i < kSamples; ++i) Add(i, i);
  }

  void Add(int32_t sample, uint64_t seed) {
    const int64_t rows = TokensOf(sample) - 1;
    const RandomRoutes routes = MakeRandomRoutes(geometry_, rows, seed);
    const std::vector<int32_t> tensor = routes.Tensor({0, rows});
    const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(tensor.data()), tensor.size() * 4);
    EXPECT_OK(source_.Add({.sample = Name(sample)}, {.dtype = DType::kI32, .shape = {rows, 2, 2}}, bytes));
  }

  // Returns the plan of one of two context-parallel ranks, for a micro-batch with one document per sample.
  ReplayPlan PlanOf(const std::vector<int32_t>& samples, int32_t cp = 0) const {
    MicroBatchLayout layout{.cu_seqlens_padded = {0}, .partition = Partition::kZigzagPerDocument, .cp_size = 2};
    for (const int32_t sample : samples) {
      const int64_t tokens = TokensOf(sample);
      layout.sequences.push_back({tokens, tokens - 1});
      layout.cu_seqlens_padded.push_back(layout.cu_seqlens_padded.back() + (tokens + 3) / 4 * 4);
    }
    layout.total_rows = layout.cu_seqlens_padded.back();
    return *MakeReplayPlan(geometry_, *LayerTable::Create({.num_layers = 2}), layout, {.rows = {.cp_rank = cp}});
  }

  static std::vector<FetchSequence> Sequences(const std::vector<int32_t>& samples) {
    std::vector<FetchSequence> sequences;
    for (const int32_t sample : samples) {
      sequences.push_back({.sample = Name(sample), .num_tokens = TokensOf(sample)});
    }
    return sequences;
  }

  absl::StatusOr<StagedRows> Fetch(const std::shared_ptr<StepCache>& cache, const ReplayPlan& plan,
                                   const std::vector<FetchSequence>& sequences,
                                   MissingPolicy missing = MissingPolicy::kStrict, FetchTime time = FetchTime::kNow) {
    const FetchOptions options{.missing = missing};
    CachedFetch fetch(cache, plan, sequences, options, time);
    while (true) {
      const auto slices = fetch.Next(Soon());
      if (!slices.ok()) return slices.status();
      if (slices->empty()) return fetch.Take("");
      reads_ += static_cast<int64_t>(slices->size());
      EXPECT_EQ(fetch.read_options().wait, time == FetchTime::kNow);
      auto staged = source_.Fetch(plan, *slices, sequences, fetch.read_options());
      if (!staged.ok()) return staged.status();
      fetch.Give(*staged);
    }
  }

  // Checks that a fetch through the cache gives what a fetch without a cache gives, whatever is cached.
  void Check(const std::shared_ptr<StepCache>& cache, const std::vector<int32_t>& samples, int32_t cp = 0) {
    const ReplayPlan plan = PlanOf(samples, cp);
    const std::vector<FetchSequence> sequences = Sequences(samples);
    const auto expected = source_.Fetch(plan, sequences, {.missing = MissingPolicy::kLive});
    const auto staged = Fetch(cache, plan, sequences, MissingPolicy::kLive);
    ASSERT_OK(expected);
    ASSERT_OK(staged);
    EXPECT_EQ(RowsOf(*staged), RowsOf(*expected));
    EXPECT_EQ(staged->unrecorded, expected->unrecorded);
    EXPECT_EQ(staged->fallback_sequences, expected->fallback_sequences);
    for (size_t i = 0; i < plan.slices.size(); ++i) {
      EXPECT_EQ(staged->records[i].index, expected->records[i].index);
      EXPECT_EQ(staged->records[i].status, expected->records[i].status);
      EXPECT_EQ(staged->records[i].content_id, expected->records[i].content_id);
    }
  }

  const Geometry geometry_ = Geometry::Uniform(2, 64, 2);
  LocalSource source_{geometry_};
  std::atomic<int64_t> reads_ = 0;
};

TEST_F(StepCacheTest, ASliceIsReadOnceInWhateverMicroBatch) {
  const auto cache = std::make_shared<StepCache>(kPlenty);
  Check(cache, {0, 1, 2});
  Check(cache, {3, 4, 5});
  for (int32_t epoch = 0; epoch < 3; ++epoch) {
    Check(cache, {5, 0});
    Check(cache, {2, 1, 3, 4});
  }
  EXPECT_EQ(reads_, kSamples);
  Check(cache, {0}, 1);  // Other rows.
  EXPECT_EQ(reads_, kSamples + 1);
  const StepCache::Counters counters = cache->counters();
  EXPECT_EQ(counters.misses, kSamples + 1);
  EXPECT_EQ(counters.hits, 3 * kSamples);
  cache->EndStep();
  EXPECT_EQ(cache->counters().bytes, 0);
  Check(cache, {0});
  EXPECT_EQ(reads_, kSamples + 2);
}

TEST_F(StepCacheTest, WhatFallsBackIsAskedForAgain) {
  const auto cache = std::make_shared<StepCache>(kPlenty);
  source_.Remove("s1");
  Check(cache, {0, 1});
  Check(cache, {0, 1});
  EXPECT_EQ(reads_, 3);
  Add(1, 7);
  Check(cache, {0, 1});
  Check(cache, {0, 1});
  EXPECT_EQ(reads_, 4);
}

TEST_F(StepCacheTest, ASampleThatIsMissingFallsBackOrIsAnError) {
  const auto cache = std::make_shared<StepCache>(kPlenty);
  source_.Remove("s1");
  const auto staged = Fetch(cache, PlanOf({0, 1, 2}), Sequences({0, 1, 2}), MissingPolicy::kDrop);
  ASSERT_OK(staged);
  EXPECT_EQ(staged->fallback_sequences, 1);
  EXPECT_EQ(staged->records[1].status, SampleStatus::kNotFound);
  EXPECT_THAT(Fetch(cache, PlanOf({1}), Sequences({1})),
              Fails(absl::StatusCode::kFailedPrecondition, Reason::kNoSample));
}

TEST_F(StepCacheTest, OnlyWhatWasAgreedIsUsed) {
  const auto cache = std::make_shared<StepCache>(kPlenty);
  const ReplayPlan plan = PlanOf({0, 1});
  std::vector<FetchSequence> sequences = Sequences({0, 1});
  ASSERT_OK_AND_ASSIGN(const StagedRows first, Fetch(cache, plan, sequences));
  sequences[0].content_id = first.records[0].content_id;
  ASSERT_OK(Fetch(cache, plan, sequences));
  EXPECT_EQ(reads_, 2);

  Add(0, 99);  // The content changes; the cache still has the old rows.
  sequences[0].content_id = source_.Inspect({.sample = "s0"}).content_id;
  ASSERT_OK_AND_ASSIGN(const StagedRows second, Fetch(cache, plan, sequences));
  EXPECT_EQ(reads_, 3);
  EXPECT_NE(RowsOf(second)[0], RowsOf(first)[0]);

  Add(0, 100);
  cache->EndStep();
  for (const MissingPolicy missing : {MissingPolicy::kStrict, MissingPolicy::kLive, MissingPolicy::kDrop}) {
    const auto rejected = Fetch(cache, plan, sequences, missing);
    EXPECT_THAT(rejected, Fails(absl::StatusCode::kFailedPrecondition, Reason::kConflictingRows));
    EXPECT_EQ(GetErrorDetail(rejected.status())->field, "content_id");
    EXPECT_EQ(GetErrorDetail(rejected.status())->sample, "s0");
  }
  sequences[0] = {.sample = "s0", .live = true};
  ASSERT_OK_AND_ASSIGN(const StagedRows live, Fetch(cache, plan, sequences));
  EXPECT_EQ(live.fallback_sequences, 1);
  EXPECT_THAT(live.unrecorded[0], SizeIs(1));
}

TEST_F(StepCacheTest, WhatStandsBehindAStaleSliceIsCheckedToo) {
  const auto cache = std::make_shared<StepCache>(kPlenty);
  const ReplayPlan plan = PlanOf({0});
  const FetchOptions options;
  const std::vector<FetchSequence> unchecked = Sequences({0});
  std::vector<FetchSequence> agreed = unchecked;
  CachedFetch reader(cache, plan, unchecked, options, FetchTime::kNow);
  const std::vector<int32_t> slices = NextOf(reader);
  ASSERT_OK_AND_ASSIGN(const StagedRows old, source_.Fetch(plan, slices, unchecked, options));
  agreed[0].content_id = old.records[0].content_id + 1;
  CachedFetch waiter(cache, plan, agreed, options, FetchTime::kNow);
  EXPECT_THAT(waiter.Next(AtOnce()), Fails(absl::StatusCode::kDeadlineExceeded, Reason::kUnspecified));
  reader.Give(old);
  EXPECT_THAT(NextOf(waiter), ElementsAre(0));
}

TEST_F(StepCacheTest, BytesAreBounded) {
  constexpr int64_t kBytes = 6000;
  const auto cache = std::make_shared<StepCache>(kBytes);
  std::mt19937_64 random(5);
  for (int32_t i = 0; i < 200; ++i) {
    std::vector<int32_t> samples;
    for (int32_t sample = 0; sample < kSamples; ++sample) {
      if (random() % 3 == 0) samples.push_back(sample);
    }
    if (!samples.empty()) Check(cache, samples, static_cast<int32_t>(random() % 2));
    EXPECT_LE(cache->counters().bytes, kBytes);
  }
  const StepCache::Counters counters = cache->counters();
  EXPECT_GT(counters.misses, 2 * kSamples);
  EXPECT_GT(counters.hits, 0);
}

TEST_F(StepCacheTest, TheLeastRecentlyUsedGoes) {
  const auto probe = std::make_shared<StepCache>(kPlenty);
  Check(probe, {3});
  const auto cache = std::make_shared<StepCache>(probe->counters().bytes * 5 / 2);
  reads_ = 0;
  for (const int32_t sample : {0, 3, 0}) Check(cache, {sample});
  EXPECT_EQ(reads_, 2);
  Check(cache, {0}, 1);
  Check(cache, {0});
  EXPECT_EQ(reads_, 3);
  Check(cache, {3});
  EXPECT_EQ(reads_, 4);
}

TEST_F(StepCacheTest, WhatIsReadAheadWaitsForItsUse) {
  const ReplayPlan first = PlanOf({0}), second = PlanOf({3});
  const auto one = Sequences({0}), other = Sequences({3});
  const auto probe = std::make_shared<StepCache>(kPlenty);
  ASSERT_OK(Fetch(probe, first, one));
  const auto cache = std::make_shared<StepCache>(probe->counters().bytes * 3 / 2);
  reads_ = 0;
  ASSERT_OK_AND_ASSIGN(const StagedRows nothing, Fetch(cache, first, one, MissingPolicy::kLive, FetchTime::kAhead));
  EXPECT_THAT(nothing.pieces, IsEmpty());
  const FetchOptions options;
  CachedFetch late(cache, second, other, options, FetchTime::kAhead);
  EXPECT_THAT(late.Next(AtOnce()), Fails(absl::StatusCode::kDeadlineExceeded, Reason::kUnspecified));  // No room.
  Check(cache, {3});  // It cannot evict entries that are waited for …
  Check(cache, {0});
  EXPECT_EQ(cache->counters().hits, 1);
  EXPECT_THAT(NextOf(late), ElementsAre(0));  // … until they are used.
}

TEST_F(StepCacheTest, WhatWasReadAheadEndsWithItsStep) {
  const auto cache = std::make_shared<StepCache>(kPlenty);
  const ReplayPlan plan = PlanOf({0});
  const auto sequences = Sequences({0});
  ASSERT_OK(Fetch(cache, PlanOf({1}), Sequences({1}), MissingPolicy::kLive, FetchTime::kAhead));
  const FetchOptions options{.missing = MissingPolicy::kLive};
  CachedFetch late(cache, plan, sequences, options, FetchTime::kAhead);
  cache->EndStep();
  EXPECT_EQ(cache->counters().bytes, 0);
  EXPECT_THAT(NextOf(late), IsEmpty());
}

TEST_F(StepCacheTest, TheSecondAskerWaitsAndIsLeftWithNothing) {
  const auto cache = std::make_shared<StepCache>(kPlenty);
  const ReplayPlan plan = PlanOf({0});
  const auto sequences = Sequences({0});
  const FetchOptions options{.missing = MissingPolicy::kLive};
  auto reader = std::make_unique<CachedFetch>(cache, plan, sequences, options, FetchTime::kNow);
  ASSERT_OK(reader->Next(AtOnce()));
  CachedFetch second(cache, plan, sequences, options, FetchTime::kNow);
  EXPECT_THAT(second.Next(AtOnce()), Fails(absl::StatusCode::kDeadlineExceeded, Reason::kUnspecified));
  ASSERT_OK_AND_ASSIGN(const StagedRows missing, second.Take("no time"));
  EXPECT_EQ(missing.fallback_sequences, 1);
  EXPECT_EQ(missing.records[0].message, "no time");
  reader.reset();  // The first reader failed: now the second one must read.
  EXPECT_THAT(NextOf(second), ElementsAre(0));
  cache->Stop();
  EXPECT_THAT(second.Next(Soon()), Fails(absl::StatusCode::kCancelled, Reason::kUnspecified));
}

TEST_F(StepCacheTest, ThreadsReadEachSliceOnce) {
  const auto cache = std::make_shared<StepCache>(kPlenty);
  std::vector<std::thread> threads;
  for (int32_t thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (int32_t i = 0; i < 20; ++i) {
        const int32_t first = (thread + i) % kSamples;
        const std::vector<int32_t> samples = {first, (first + 1) % kSamples, (first + 3) % kSamples};
        if (thread % 4 == 3) {
          EXPECT_OK(Fetch(cache, PlanOf(samples), Sequences(samples), MissingPolicy::kLive, FetchTime::kAhead));
        } else {
          Check(cache, samples);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(reads_, kSamples);
}

TEST_F(StepCacheTest, ThreadsInASmallCache) {
  const auto cache = std::make_shared<StepCache>(5000);
  std::vector<std::thread> threads;
  for (int32_t thread = 0; thread < 6; ++thread) {
    threads.emplace_back([&, thread] {
      for (int32_t i = 0; i < 20; ++i) {
        if (thread == 0 && i % 7 == 0) cache->EndStep();
        const int32_t first = (thread + i) % kSamples;
        Check(cache, {first, (first + 2) % kSamples});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(cache->counters().bytes, 5000);
}

TEST(SliceKey, SaysAllThatIsRead) {
  const Geometry geometry = Geometry::Uniform(2, 8, 2);
  const ReplayPlan plan = *MakeReplayPlan(geometry, *LayerTable::Create({.num_layers = 2}),
                                          {.sequences = {{4, 3}}, .cu_seqlens_padded = {0, 4}, .total_rows = 4}, {});
  const PlanSlice slice = plan.slices[0];
  PlanSlice shorter = slice;
  shorter.rows = {{0, 2}};
  ReplayPlan half = plan;
  half.routing.pop_back();
  half.layers.pop_back();
  ReplayPlan more_experts = plan, wider = plan, elsewhere = plan;
  more_experts.routing[0].num_experts = 16;
  wider.routing[0].top_k = 4;
  elsewhere.layers[0].ordinal = 5;
  const std::string keys[] = {
      SliceKey(plan, slice, {.sample = "a"}),
      SliceKey(plan, slice, {.sample = "b"}),
      SliceKey(plan, slice, {.handle = 5}),
      SliceKey(plan, slice, {.sample = "a", .num_tokens = 4}),
      SliceKey(plan, slice, {.sample = "a", .token_checks = {{3, 7}}}),
      SliceKey(plan, shorter, {.sample = "a"}),
      SliceKey(half, slice, {.sample = "a"}),
      SliceKey(more_experts, slice, {.sample = "a"}),
      SliceKey(wider, slice, {.sample = "a"}),
      SliceKey(elsewhere, slice, {.sample = "a"}),
  };
  for (const std::string& key : keys) EXPECT_EQ(std::count(std::begin(keys), std::end(keys), key), 1) << key;
}

}  // namespace
}  // namespace routing_replay::trainer
