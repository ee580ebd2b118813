// Tests the C API of steps as a C program uses it: a cache in front of a source, inspections, and an exported run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "client/c_api/testing/values.h"
#include "routing_replay/trainer/capi.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using client::Failure;
using client::String;
using client::Text;
using nlohmann::json;

constexpr char kGeometry[] = R"({"num_layers": 1, "num_experts": 8, "top_k": 2})";

// Returns {code, field} of an error and frees the error; returns null if there is no error.
json Take(rr_error* error) {
  if (error == nullptr) return nullptr;
  const Failure failure(error);
  return {absl::StatusCodeToString(failure.code), failure.field};
}

class TrainerCapiStepTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const json micro_batch = {{"format", "THD"},
                              {"sequences", {{{"sample", "a"}, {"tokens", 4}}, {{"sample", "b"}, {"tokens", 3}}}},
                              {"cu_seqlens_padded", {0, 4, 7}},
                              {"total_rows", 7},
                              {"partition", "contiguous"}};
    const std::string text =
        json({{"geometry", json::parse(kGeometry)}, {"micro_batch", micro_batch}, {"rank", {{"pp", 0}}}}).dump();
    const rr_bytes* described = nullptr;
    ASSERT_EQ(Take(rrt_plan_new(Text(text), 1, &plan_, &described)), nullptr);
    rr_free(described);
    ASSERT_EQ(Take(rrt_local_source_new(Text(kGeometry), &source_)), nullptr);
    ASSERT_EQ(Take(Add("a", {}, {1, 2, 3, 4, 5, 6})), nullptr);
    ASSERT_EQ(Take(rrt_step_cache_new(1 << 20, &cache_)), nullptr);
  }
  void TearDown() override {
    rr_object_free(cache_);
    rr_object_free(source_);
    rr_object_free(plan_);
  }

  rr_error* Add(absl::string_view sample, rr_integer num_tokens, const std::vector<uint8_t>& ids) {
    const int64_t shape[] = {static_cast<int64_t>(ids.size()) / 2, 1, 2};
    const rr_tensor tensor{
        .data = ids.data(), .size = ids.size(), .dtype = Text("U8"), .shape = shape, .shape_count = 3};
    return rrt_local_source_add(source_, Text(sample), num_tokens, {}, &tensor, nullptr, 0);
  }
  rrt_fetch* NewFetch(int32_t missing) {
    const rrt_fetch_options options{.missing = missing};
    rrt_fetch* fetch = nullptr;
    EXPECT_EQ(Take(rrt_fetch_new(plan_, &options, &fetch)), nullptr);
    return fetch;
  }
  // Number of reads.
  int32_t FetchThroughCache(rrt_fetch* fetch, int32_t ahead) {
    EXPECT_EQ(Take(rrt_step_cache_attach(cache_, fetch, ahead)), nullptr);
    int32_t times = 0, reads = 0;
    while (true) {
      EXPECT_EQ(Take(rrt_step_cache_next(fetch, 1000, &reads)), nullptr);
      if (reads == 0) return times;
      EXPECT_EQ(Take(rrt_source_fetch(source_, fetch)), nullptr);
      ++times;
    }
  }
  static json ResultOf(rrt_fetch* fetch) {
    const rrt_records* records = nullptr;
    EXPECT_EQ(Take(rrt_fetch_result(fetch, nullptr, &records)), nullptr);
    json result = {{"fallback_sequences", records->fallback_sequences}};
    result["sequences"] = TakeRecords(records);
    return result;
  }
  static json TakeRecords(const rrt_records* records) {
    json list = json::array();
    for (size_t i = 0; i < records->count; ++i) {
      const rrt_record& record = records->data[i];
      list.push_back({{"sequence", record.sequence},
                      {"sample", String(record.sample)},
                      {"status", String(record.said.status)},
                      {"message", String(record.said.message)}});
      if (record.said.num_tokens.present != 0) list.back()["num_tokens"] = record.said.num_tokens.value;
    }
    rr_free(records);
    return list;
  }
  json Inspect(const std::vector<rrt_sequence>& sequences) {
    const rrt_fetch_options options{.sequences = sequences.data(), .count = sequences.size()};
    const rrt_records* records = nullptr;
    EXPECT_EQ(Take(rrt_source_inspect(source_, &options, &records)), nullptr);
    return TakeRecords(records);
  }

  rrt_plan* plan_ = nullptr;
  rrt_source* source_ = nullptr;
  rrt_step_cache* cache_ = nullptr;
};

TEST_F(TrainerCapiStepTest, AFetchThroughTheCache) {
  rrt_fetch* ahead = NewFetch(RRT_LIVE);
  EXPECT_EQ(FetchThroughCache(ahead, 1), 1);
  rr_object_free(ahead);
  for (int32_t i = 0; i < 2; ++i) {
    rrt_fetch* fetch = NewFetch(RRT_DROP);
    EXPECT_EQ(FetchThroughCache(fetch, 0), 1);  // For b, which does not exist.
    const json result = ResultOf(fetch);
    EXPECT_EQ(result["fallback_sequences"], 1);
    EXPECT_EQ(result["sequences"][0]["status"], "OK");
    EXPECT_EQ(result["sequences"][1]["status"], "NOT_FOUND");
    std::vector<uint8_t> ids(14), states(7);
    const rrt_target target{ids.data(), ids.size(), states.data(), states.size()};
    const rrt_records* records = nullptr;
    ASSERT_EQ(Take(rrt_fetch_result(fetch, &target, &records)), nullptr);
    EXPECT_EQ(records->replayed_rows, 3);
    EXPECT_EQ(records->unrecorded_rows, 4);
    EXPECT_EQ(records->pad_rows, 0);
    rr_free(records);
    EXPECT_THAT(std::vector<uint8_t>(ids.begin(), ids.begin() + 6), ::testing::ElementsAre(1, 2, 3, 4, 5, 6));
    rr_object_free(fetch);
  }
  rrt_step_cache_counts counts;
  EXPECT_EQ(Take(rrt_step_cache_counters(cache_, &counts)), nullptr);
  EXPECT_EQ(counts.hits, 2);
  EXPECT_EQ(counts.misses, 2);
  EXPECT_GT(counts.bytes, 0);
  EXPECT_EQ(Take(rrt_step_cache_end_step(cache_)), nullptr);
}

TEST_F(TrainerCapiStepTest, AheadNothingIsRejected) {
  for (const int32_t ahead : {1, 0}) {
    rrt_fetch* fetch = NewFetch(RRT_STRICT);
    int32_t reads = 0;
    ASSERT_EQ(Take(rrt_step_cache_attach(cache_, fetch, ahead)), nullptr);
    ASSERT_EQ(Take(rrt_step_cache_next(fetch, 1000, &reads)), nullptr);
    ASSERT_EQ(reads, 1);
    const json read = Take(rrt_source_fetch(source_, fetch));
    EXPECT_EQ(read, ahead == 0 ? json({"FAILED_PRECONDITION", ""}) : json());  // b does not exist.
    rr_object_free(fetch);
  }
}

TEST_F(TrainerCapiStepTest, WhatDoesNotComeFallsBack) {
  rrt_fetch* reader = NewFetch(RRT_LIVE);
  rrt_fetch* waiter = NewFetch(RRT_LIVE);
  int32_t reads = 0;
  ASSERT_EQ(Take(rrt_step_cache_attach(cache_, reader, 0)), nullptr);
  ASSERT_EQ(Take(rrt_step_cache_next(reader, 0, &reads)), nullptr);
  EXPECT_EQ(reads, 1);
  ASSERT_EQ(Take(rrt_step_cache_attach(cache_, waiter, 0)), nullptr);
  EXPECT_EQ(Take(rrt_step_cache_next(waiter, 0, &reads))[0], "DEADLINE_EXCEEDED");
  ASSERT_EQ(Take(rrt_fetch_give_up(waiter, Text("late"))), nullptr);
  EXPECT_EQ(ResultOf(waiter)["fallback_sequences"], 2);
  EXPECT_EQ(ResultOf(waiter)["sequences"][0]["message"], "late");
  ASSERT_EQ(Take(rrt_step_cache_detach(reader)), nullptr);
  ASSERT_EQ(Take(rrt_fetch_give_up(reader, Text("late"))), nullptr);
  EXPECT_EQ(ResultOf(reader)["fallback_sequences"], 2);
  rr_object_free(reader);
  rr_object_free(waiter);
  rrt_fetch* stopped = NewFetch(RRT_LIVE);
  ASSERT_EQ(Take(rrt_step_cache_attach(cache_, stopped, 0)), nullptr);
  EXPECT_EQ(Take(rrt_step_cache_attach(cache_, stopped, 0)), json({"INVALID_ARGUMENT", "fetch"}));
  ASSERT_EQ(Take(rrt_step_cache_stop(cache_)), nullptr);
  EXPECT_EQ(Take(rrt_step_cache_next(stopped, 1000, &reads))[0], "CANCELLED");
  rr_object_free(stopped);
}

TEST_F(TrainerCapiStepTest, WhatWasToBeReadComesFirst) {
  rrt_fetch* fetch = NewFetch(RRT_LIVE);
  int32_t reads = 0;
  ASSERT_EQ(Take(rrt_step_cache_attach(cache_, fetch, 0)), nullptr);
  ASSERT_EQ(Take(rrt_step_cache_next(fetch, 0, &reads)), nullptr);
  EXPECT_EQ(reads, 1);
  reads = 7;
  EXPECT_EQ(Take(rrt_step_cache_next(fetch, 0, &reads)), json({"FAILED_PRECONDITION", "fetch"}));
  EXPECT_EQ(reads, 7);
  const rrt_records* records = nullptr;
  EXPECT_EQ(Take(rrt_fetch_result(fetch, nullptr, &records))[0], "FAILED_PRECONDITION");  // The fetch still runs.
  EXPECT_EQ(Take(rrt_source_fetch(source_, fetch)), nullptr);
  EXPECT_EQ(Take(rrt_step_cache_next(fetch, 0, &reads)), nullptr);
  EXPECT_EQ(reads, 0);
  EXPECT_EQ(ResultOf(fetch)["sequences"][0]["status"], "OK");
  rr_object_free(fetch);
}

TEST_F(TrainerCapiStepTest, OneThatGivesUpLeavesItsSlicesToOthers) {
  for (const int32_t missing : {RRT_STRICT, RRT_LIVE}) {
    rrt_fetch* reader = NewFetch(missing);
    rrt_fetch* waiter = NewFetch(RRT_LIVE);
    int32_t reads = 0;
    ASSERT_EQ(Take(rrt_step_cache_attach(cache_, reader, 0)), nullptr);
    ASSERT_EQ(Take(rrt_step_cache_next(reader, 0, &reads)), nullptr);
    ASSERT_EQ(Take(rrt_step_cache_attach(cache_, waiter, 0)), nullptr);
    EXPECT_EQ(Take(rrt_step_cache_next(waiter, 0, &reads))[0], "DEADLINE_EXCEEDED");
    const json rejected = Take(rrt_fetch_give_up(reader, Text("late")));
    EXPECT_EQ(rejected.is_null(), missing == RRT_LIVE);
    reads = 0;
    EXPECT_EQ(Take(rrt_step_cache_next(waiter, 0, &reads)), nullptr) << missing;
    EXPECT_EQ(reads, 1);
    rr_object_free(reader);
    rr_object_free(waiter);
  }
}

TEST_F(TrainerCapiStepTest, WhatIsKnownOfSamples) {
  const json records = Inspect(
      {{.sample = Text("a"), .num_tokens = {4, 1}}, {.sample = Text("a"), .num_tokens = {9, 1}}, {.handle = 5}});
  EXPECT_EQ(records[0]["status"], "OK");
  EXPECT_EQ(records[0]["num_tokens"], 4);
  EXPECT_EQ(records[1]["status"], "LENGTH_MISMATCH");
  EXPECT_EQ(records[2]["status"], "NOT_FOUND");
}

TEST_F(TrainerCapiStepTest, ASampleOfOneTokenHasARowToAskForUnlessItsLengthIsExpected) {
  ASSERT_EQ(Take(Add("one", {1, 1}, {})), nullptr);
  const json records = Inspect({{.sample = Text("one")},
                                {.sample = Text("one"), .num_tokens = {1, 1}},
                                {.sample = Text("one"), .token_check = {0, 0}, .has_token_check = 1},
                                {.sample = Text("one"), .token_check = {1, 7}, .has_token_check = 1},
                                {.sample = Text("a")}});
  for (const size_t i : {1, 4}) EXPECT_EQ(records[i]["status"], "OK") << i;
  for (const size_t i : {0, 2, 3}) EXPECT_EQ(records[i]["status"], "OUT_OF_RANGE") << i;
}

TEST_F(TrainerCapiStepTest, WrongArguments) {
  rrt_step_cache* cache = nullptr;
  EXPECT_EQ(Take(rrt_step_cache_new(-1, &cache)), json({"INVALID_ARGUMENT", "max_bytes"}));
  rrt_fetch* fetch = NewFetch(RRT_LIVE);
  int32_t reads = 0;
  EXPECT_EQ(Take(rrt_step_cache_attach(cache_, fetch, 2)), json({"INVALID_ARGUMENT", "ahead"}));
  EXPECT_EQ(Take(rrt_step_cache_next(fetch, 0, &reads)), json({"INVALID_ARGUMENT", "fetch"}));
  rr_object_free(fetch);
  rrt_source* source = nullptr;
  const rr_bytes* described = nullptr;
  EXPECT_EQ(Take(rrt_directory_source_open(Text("/nowhere"), &source, &described)),
            json({"FAILED_PRECONDITION", "index.json"}));
}

}  // namespace
}  // namespace routing_replay
