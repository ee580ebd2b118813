// The C API of steps as a C program sees it: a cache before a source, what is known of samples, and an exported run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "routing_replay/trainer/capi.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using nlohmann::json;

constexpr char kGeometry[] = R"({"num_layers": 1, "num_experts": 8, "top_k": 2})";

// {"code", "field"} of an error, which it frees; null for none.
json Take(rrt_error* error) {
  if (error == nullptr) return nullptr;
  json detail = json::parse(rrt_error_json(error));
  rrt_error_free(error);
  return {detail["code_name"], detail.value("field", "")};
}

json TakeJson(rrt_bytes* bytes) {
  const auto* text = static_cast<const char*>(rrt_bytes_data(bytes));
  json value = json::parse(text, text + rrt_bytes_size(bytes));
  rrt_bytes_free(bytes);
  return value;
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
    ASSERT_EQ(Take(rrt_plan_new(text.data(), text.size(), 1, &plan_)), nullptr);
    ASSERT_EQ(Take(rrt_local_source_new(kGeometry, sizeof(kGeometry) - 1, &source_)), nullptr);
    const std::string sample = R"({"sample": "a"})", tensor = R"({"dtype": "U8", "shape": [3, 1, 2]})";
    const uint8_t ids[] = {1, 2, 3, 4, 5, 6};
    ASSERT_EQ(Take(rrt_local_source_add(source_, sample.data(), sample.size(), tensor.data(), tensor.size(), nullptr, 0,
                                        ids, sizeof(ids))),
              nullptr);
    ASSERT_EQ(Take(rrt_step_cache_new(1 << 20, &cache_)), nullptr);
  }
  void TearDown() override {
    rrt_step_cache_free(cache_);
    rrt_local_source_free(source_);
    rrt_plan_free(plan_);
  }

  rrt_fetch* NewFetch(const char* missing) {
    const std::string text = json({{"missing", missing}, {"run", "r"}}).dump();
    rrt_fetch* fetch = nullptr;
    EXPECT_EQ(Take(rrt_fetch_new(plan_, text.data(), text.size(), &fetch)), nullptr);
    return fetch;
  }
  // How often it was read.
  int32_t FetchThroughCache(rrt_fetch* fetch, int32_t ahead) {
    EXPECT_EQ(Take(rrt_step_cache_attach(cache_, fetch, ahead)), nullptr);
    int32_t times = 0, reads = 0;
    while (true) {
      EXPECT_EQ(Take(rrt_step_cache_next(fetch, 1000, &reads)), nullptr);
      if (reads == 0) return times;
      EXPECT_EQ(Take(rrt_local_source_fetch(source_, fetch)), nullptr);
      ++times;
    }
  }
  static json ResultOf(rrt_fetch* fetch) {
    rrt_bytes* result = nullptr;
    EXPECT_EQ(Take(rrt_fetch_result(fetch, &result)), nullptr);
    return TakeJson(result);
  }

  rrt_plan* plan_ = nullptr;
  rrt_local_source* source_ = nullptr;
  rrt_step_cache* cache_ = nullptr;
};

TEST_F(TrainerCapiStepTest, AFetchThroughTheCache) {
  rrt_fetch* ahead = NewFetch("live");
  EXPECT_EQ(FetchThroughCache(ahead, 1), 1);
  rrt_fetch_free(ahead);
  for (int32_t i = 0; i < 2; ++i) {
    rrt_fetch* fetch = NewFetch("drop");
    EXPECT_EQ(FetchThroughCache(fetch, 0), 1);  // For b, which is not there.
    const json result = ResultOf(fetch);
    EXPECT_EQ(result["dropped"], json({{{"sequence", 1}, {"sample", "b"}}}));
    EXPECT_EQ(result["sequences"][0]["status"], "OK");
    std::vector<uint8_t> ids(14), states(7);
    int64_t rows[3];
    EXPECT_EQ(Take(rrt_realign(plan_, fetch, ids.data(), ids.size(), states.data(), states.size(), rows)), nullptr);
    EXPECT_THAT(rows, ::testing::ElementsAre(3, 4, 0));
    EXPECT_THAT(std::vector<uint8_t>(ids.begin(), ids.begin() + 6), ::testing::ElementsAre(1, 2, 3, 4, 5, 6));
    rrt_fetch_free(fetch);
  }
  rrt_step_cache_counts counts;
  EXPECT_EQ(Take(rrt_step_cache_counters(cache_, &counts)), nullptr);
  EXPECT_EQ(counts.hits, 2);
  EXPECT_EQ(counts.misses, 2);
  EXPECT_EQ(counts.ahead, 2);
  EXPECT_EQ(counts.slices, 1);
  EXPECT_EQ(Take(rrt_step_cache_end_step(cache_)), nullptr);
}

TEST_F(TrainerCapiStepTest, AheadNothingIsRefused) {
  for (const int32_t ahead : {2, 1, 0}) {
    rrt_fetch* fetch = NewFetch("strict");
    int32_t reads = 0;
    ASSERT_EQ(Take(rrt_step_cache_attach(cache_, fetch, ahead)), nullptr);
    ASSERT_EQ(Take(rrt_step_cache_next(fetch, 1000, &reads)), nullptr);
    ASSERT_EQ(reads, 1);
    const json read = Take(rrt_local_source_fetch(source_, fetch));
    EXPECT_EQ(read, ahead == 0 ? json({"FAILED_PRECONDITION", ""}) : json());  // b is not there.
    rrt_fetch_free(fetch);
  }
}

TEST_F(TrainerCapiStepTest, WhatDoesNotComeFallsBack) {
  rrt_fetch* reader = NewFetch("live");
  rrt_fetch* waiter = NewFetch("live");
  int32_t reads = 0;
  ASSERT_EQ(Take(rrt_step_cache_attach(cache_, reader, 0)), nullptr);
  ASSERT_EQ(Take(rrt_step_cache_next(reader, 0, &reads)), nullptr);
  EXPECT_EQ(reads, 1);
  ASSERT_EQ(Take(rrt_step_cache_attach(cache_, waiter, 0)), nullptr);
  EXPECT_EQ(Take(rrt_step_cache_next(waiter, 0, &reads))[0], "DEADLINE_EXCEEDED");
  ASSERT_EQ(Take(rrt_fetch_give_up(waiter, "late", 4)), nullptr);
  EXPECT_EQ(ResultOf(waiter)["fallback_sequences"], 2);
  EXPECT_EQ(ResultOf(waiter)["sequences"][0]["message"], "late");
  ASSERT_EQ(Take(rrt_step_cache_detach(reader)), nullptr);
  ASSERT_EQ(Take(rrt_fetch_give_up(reader, "late", 4)), nullptr);
  EXPECT_EQ(ResultOf(reader)["fallback_sequences"], 2);
  rrt_fetch_free(reader);
  rrt_fetch_free(waiter);
  rrt_fetch* stopped = NewFetch("live");
  ASSERT_EQ(Take(rrt_step_cache_attach(cache_, stopped, 0)), nullptr);
  EXPECT_EQ(Take(rrt_step_cache_attach(cache_, stopped, 0)), json({"INVALID_ARGUMENT", "fetch"}));
  ASSERT_EQ(Take(rrt_step_cache_stop(cache_)), nullptr);
  EXPECT_EQ(Take(rrt_step_cache_next(stopped, 1000, &reads))[0], "CANCELLED");
  rrt_fetch_free(stopped);
}

TEST_F(TrainerCapiStepTest, WhatWasToBeReadComesFirst) {
  rrt_fetch* fetch = NewFetch("live");
  int32_t reads = 0;
  ASSERT_EQ(Take(rrt_step_cache_attach(cache_, fetch, 0)), nullptr);
  ASSERT_EQ(Take(rrt_step_cache_next(fetch, 0, &reads)), nullptr);
  EXPECT_EQ(reads, 1);
  reads = 7;
  EXPECT_EQ(Take(rrt_step_cache_next(fetch, 0, &reads)), json({"FAILED_PRECONDITION", "fetch"}));
  EXPECT_EQ(reads, 7);
  rrt_bytes* result = nullptr;
  EXPECT_EQ(Take(rrt_fetch_result(fetch, &result))[0], "FAILED_PRECONDITION");  // It has not ended by that.
  EXPECT_EQ(Take(rrt_local_source_fetch(source_, fetch)), nullptr);
  EXPECT_EQ(Take(rrt_step_cache_next(fetch, 0, &reads)), nullptr);
  EXPECT_EQ(reads, 0);
  EXPECT_EQ(ResultOf(fetch)["sequences"][0]["status"], "OK");
  rrt_fetch_free(fetch);
}

TEST_F(TrainerCapiStepTest, OneThatGivesUpLeavesItsSlicesToOthers) {
  for (const char* missing : {"strict", "live"}) {
    rrt_fetch* reader = NewFetch(missing);
    rrt_fetch* waiter = NewFetch("live");
    int32_t reads = 0;
    ASSERT_EQ(Take(rrt_step_cache_attach(cache_, reader, 0)), nullptr);
    ASSERT_EQ(Take(rrt_step_cache_next(reader, 0, &reads)), nullptr);
    ASSERT_EQ(Take(rrt_step_cache_attach(cache_, waiter, 0)), nullptr);
    EXPECT_EQ(Take(rrt_step_cache_next(waiter, 0, &reads))[0], "DEADLINE_EXCEEDED");
    const json refused = Take(rrt_fetch_give_up(reader, "late", 4));
    EXPECT_EQ(refused.is_null(), std::string(missing) == "live");
    reads = 0;
    EXPECT_EQ(Take(rrt_step_cache_next(waiter, 0, &reads)), nullptr) << missing;
    EXPECT_EQ(reads, 1);
    rrt_fetch_free(reader);
    rrt_fetch_free(waiter);
  }
}

TEST_F(TrainerCapiStepTest, WhatIsKnownOfSamples) {
  const std::string text =
      json({{"geometry", json::parse(kGeometry)},
            {"sequences",
             {{{"sample", "a"}, {"num_tokens", 4}}, {{"sample", "a"}, {"num_tokens", 9}}, {{"handle", 5}}}}})
          .dump();
  rrt_inspect* inspect = nullptr;
  ASSERT_EQ(Take(rrt_inspect_new(text.data(), text.size(), &inspect)), nullptr);
  rrt_bytes* bytes = nullptr;
  EXPECT_EQ(Take(rrt_inspect_result(inspect, &bytes)), json({"FAILED_PRECONDITION", "inspect"}));
  ASSERT_EQ(Take(rrt_local_source_inspect(source_, inspect)), nullptr);
  ASSERT_EQ(Take(rrt_inspect_result(inspect, &bytes)), nullptr);
  const json records = TakeJson(bytes);
  EXPECT_EQ(records[0]["status"], "OK");
  EXPECT_EQ(records[0]["num_tokens"], 4);
  EXPECT_EQ(records[1]["status"], "LENGTH_MISMATCH");
  EXPECT_EQ(records[2]["status"], "NOT_FOUND");
  rrt_inspect_free(inspect);

  EXPECT_EQ(Take(rrt_inspect_new("{}", 2, &inspect)), json({"INVALID_ARGUMENT", "geometry"}));
}

TEST_F(TrainerCapiStepTest, ASampleOfOneTokenHasNoRowToAskFor) {
  const std::string sample = R"({"sample": "one", "num_tokens": 1})", tensor = R"({"dtype": "U8", "shape": [0, 1, 2]})";
  ASSERT_EQ(Take(rrt_local_source_add(source_, sample.data(), sample.size(), tensor.data(), tensor.size(), nullptr, 0,
                                      "", 0)),
            nullptr);
  const std::string text = R"({"geometry": {"num_layers": 1, "num_experts": 8, "top_k": 2}, "sequences": [
      {"sample": "one"}, {"sample": "one", "num_tokens": 1}, {"sample": "one", "token_checks": [[0, 0]]},
      {"sample": "one", "token_checks": [[1, 7]]}, {"sample": "a"}]})";
  rrt_inspect* inspect = nullptr;
  ASSERT_EQ(Take(rrt_inspect_new(text.data(), text.size(), &inspect)), nullptr);
  ASSERT_EQ(Take(rrt_local_source_inspect(source_, inspect)), nullptr);
  rrt_bytes* bytes = nullptr;
  ASSERT_EQ(Take(rrt_inspect_result(inspect, &bytes)), nullptr);
  const json records = TakeJson(bytes);
  for (const size_t i : {0, 1, 2, 4}) EXPECT_EQ(records[i]["status"], "OK") << i;
  EXPECT_EQ(records[3]["status"], "OUT_OF_RANGE");
  rrt_inspect_free(inspect);
}

TEST_F(TrainerCapiStepTest, WrongArguments) {
  rrt_step_cache* cache = nullptr;
  EXPECT_EQ(Take(rrt_step_cache_new(-1, &cache)), json({"INVALID_ARGUMENT", "max_bytes"}));
  rrt_fetch* fetch = NewFetch("live");
  int32_t reads = 0;
  EXPECT_EQ(Take(rrt_step_cache_attach(cache_, fetch, 3)), json({"INVALID_ARGUMENT", "ahead"}));
  EXPECT_EQ(Take(rrt_step_cache_next(fetch, 0, &reads)), json({"INVALID_ARGUMENT", "fetch"}));
  rrt_fetch_free(fetch);
  rrt_directory_source* source = nullptr;
  EXPECT_EQ(Take(rrt_directory_source_open("/nowhere", 8, &source)), json({"FAILED_PRECONDITION", "index.json"}));
  rrt_directory_source_free(source);
}

}  // namespace
}  // namespace routing_replay
