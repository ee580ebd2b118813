// Expert counts. That they are right after any operations is the model's to test (model_rules.cc).
#include <atomic>
#include <thread>

#include "server/store/conformance/conformance.h"

namespace routing_replay::testing {
namespace {

constexpr auto kRollout = Producer::kRollout;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
const std::function<bool()> kNeverStop = [] { return false; };

std::vector<int64_t> CountsOf(const Geometry& geometry, const Rows& rows, int32_t ordinal) {
  size_t begin = 0;
  for (int32_t i = 0; i < ordinal; ++i) begin += geometry.layer(i).top_k;
  std::vector<int64_t> counts(geometry.layer(ordinal).num_experts);
  for (const std::optional<RowIds>& row : rows) {
    for (int32_t k = 0; row && k < geometry.layer(ordinal).top_k; ++k) ++counts[(*row)[begin + k]];
  }
  return counts;
}

TEST_P(StoreConformance, LoadOfGroupsAndLayers) {
  const Trajectory other{.tokens = 2, .routes = 2};
  ASSERT_OK(Append({.sample = "a", .rows = {0, 70}, .unrecorded = {{3, 9}}, .group = 1}));
  ASSERT_OK(Append({.sample = "b", .from = other, .rows = {0, 20}, .group = 2}));
  ASSERT_OK(Append({.sample = "b", .producer = Producer::kTrainer, .rows = {0, 5}, .group = 1}));
  const Rows a = Read("a"), b = Read("b");
  ASSERT_OK_AND_ASSIGN(const ExpertLoad one, store_->CountExperts("run", kRollout, GroupRange{1, 2}, {}, kNeverStop));
  EXPECT_EQ(one.rows, 64);
  EXPECT_EQ(one.samples, 1);
  ASSERT_EQ(one.layers.size(), 3u);
  for (int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(one.layers[i].layer_id, geometry().layer(i).layer_id);
    EXPECT_EQ(one.layers[i].counts, CountsOf(geometry(), a, i));
  }
  const std::vector<int32_t> layers{3, 1};
  ASSERT_OK_AND_ASSIGN(const ExpertLoad both, store_->CountExperts("run", kRollout, {}, layers, kNeverStop));
  EXPECT_EQ(both.rows, 84);
  ASSERT_EQ(both.layers.size(), 2u);
  for (const auto& [at, ordinal] : {std::pair(0, 2), std::pair(1, 0)}) {
    std::vector<int64_t> expected = CountsOf(geometry(), a, ordinal);
    const std::vector<int64_t> more = CountsOf(geometry(), b, ordinal);
    for (size_t e = 0; e < expected.size(); ++e) expected[e] += more[e];
    EXPECT_EQ(both.layers[at].counts, expected);
  }
  ASSERT_OK_AND_ASSIGN(const ExpertLoad none, store_->CountExperts("run", kRollout, GroupRange{3, 9}, {}, kNeverStop));
  EXPECT_EQ(none.rows, 0);
  EXPECT_EQ(none.layers[0].counts, std::vector<int64_t>(60));
}

TEST_P(StoreConformance, LoadCountsSharedRowsForEachThatShowsThem) {
  ASSERT_OK(Append({.sample = "parent", .rows = {0, 50}}));
  for (const char* child : {"x", "y"}) {
    ASSERT_OK(Append({.sample = child, .rows = {40, 45}, .prefix = PrefixReference{"parent", 40, 0}}));
  }
  ASSERT_OK_AND_ASSIGN(const ExpertLoad load, store_->CountExperts("run", kRollout, {}, {}, kNeverStop));
  EXPECT_EQ(load.rows, 50 + 2 * 45);
  const std::vector<SampleRef> parent{{.sample = "parent"}};
  ASSERT_OK(store_->Release("run", kRollout, parent));
  ASSERT_OK_AND_ASSIGN(const ExpertLoad rest, store_->CountExperts("run", kRollout, {}, {}, kNeverStop));
  EXPECT_EQ(rest.rows, 2 * 45);
  std::vector<int64_t> expected = CountsOf(geometry(), Read("x"), 1);
  for (int64_t& count : expected) count *= 2;
  EXPECT_EQ(rest.layers[1].counts, expected);
}

TEST_P(StoreConformance, LoadRefusals) {
  Fill("s", 10);
  const std::vector<int32_t> dense{0};
  EXPECT_THAT(store_->CountExperts("run", kRollout, {}, dense, kNeverStop), Fails(kInvalid, Reason::kField));
  EXPECT_THAT(store_->CountExperts("none", kRollout, {}, {}, kNeverStop),
              Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
  EXPECT_EQ(store_->CountExperts("run", kRollout, {}, {}, [] { return true; }).status().code(),
            absl::StatusCode::kCancelled);
}

TEST_P(StoreConformance, LoadIsPaidForAndGivenBack) {
  Fill("s", 40);
  const int64_t before = Used();
  ASSERT_OK(store_->CountExperts("run", kRollout, {}, {}, kNeverStop));
  EXPECT_GE(Used(), before);
  if (GetParam().rows_in_budget) {
    EXPECT_EQ(store_->GetTotals().stored_bytes, Used());
  }
  ASSERT_OK(Append({.rows = {40, 41}, .group = 5}));
  ASSERT_OK(store_->CountExperts("run", kRollout, {}, {}, kNeverStop));
  ASSERT_OK(store_->ReleaseGroups("run", std::nullopt, {5, 6}));
  if (GetParam().one_server) {
    EXPECT_EQ(Used(), 0);
  }
}

TEST_P(StoreConformance, LoadWithoutRoomIsCountedAllTheSame) {
  Fill("s", 40);
  const ByteReservation rest = *budget_->Reserve(budget_->limit() - budget_->used());
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(const ExpertLoad load, store_->CountExperts("run", kRollout, {}, {}, kNeverStop));
    EXPECT_EQ(load.rows, 40);
  }
  EXPECT_EQ(budget_->used(), budget_->limit());
}

// While rows come and go every answer is of whole samples at some moment.
TEST_P(StoreConformance, LoadWhileOthersWrite) {
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (int64_t round = 0; round < 40; ++round) {
      const std::string sample = round % 2 == 0 ? "x" : "y";
      for (int64_t row = 0; row < 30; row += 3) {
        EXPECT_OK(Append({.sample = sample, .rows = {row, row + 3}, .revision = 0, .group = round % 3}));
      }
      if (round % 5 == 4) {
        EXPECT_OK(store_->Truncate("run", kRollout, sample, 10, std::nullopt));
      }
      const std::vector<SampleRef> refs{{.sample = sample}};
      EXPECT_OK(store_->Release("run", kRollout, refs));
    }
    done = true;
  });
  while (!done) {
    const auto load = store_->CountExperts("run", kRollout, {}, {}, kNeverStop);
    EXPECT_OK(load);
    if (!load.ok()) break;
    for (size_t i = 0; i < load->layers.size(); ++i) {
      int64_t sum = 0;
      for (const int64_t count : load->layers[i].counts) sum += count;
      EXPECT_EQ(sum, load->rows * geometry().layer(static_cast<int32_t>(i)).top_k);
    }
  }
  writer.join();
  ASSERT_OK_AND_ASSIGN(const ExpertLoad last, store_->CountExperts("run", kRollout, {}, {}, kNeverStop));
  EXPECT_EQ(last.rows, 0);
}

}  // namespace
}  // namespace routing_replay::testing
