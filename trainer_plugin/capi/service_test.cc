// Tests fetches and inspections from a run as a C program uses them, against a fake server.
#include <cstring>
#include <nlohmann/json.hpp>

#include "client/c_api/testing/c_api_fixture.h"
#include "routing_replay/trainer/capi.h"

namespace routing_replay::client {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

constexpr char kGeometry[] = R"({"num_layers": 1, "num_experts": 256, "top_k": 1})";
constexpr rr_call kBrief{.timeout_ms = 100};

// Sample a has its three rows; b does not exist.
class TrainerServiceTest : public CApiTest {
 protected:
  void SetUp() override {
    CApiTest::SetUp();
    PutRows("a", {11, 22, 33});
    plan_ = NewPlan(kGeometry);
  }
  void TearDown() override {
    rr_object_free(plan_);
    CApiTest::TearDown();
  }

  static rrt_plan* NewPlan(const char* geometry) {
    const json micro_batch = {{"format", "THD"},
                              {"sequences", {{{"sample", "a"}, {"tokens", 4}}, {{"sample", "b"}, {"tokens", 2}}}},
                              {"cu_seqlens_padded", {0, 4, 6}},
                              {"total_rows", 6},
                              {"partition", "contiguous"}};
    const std::string text =
        json({{"geometry", json::parse(geometry)}, {"micro_batch", micro_batch}, {"rank", {{"pp", 0}}}}).dump();
    rrt_plan* plan = nullptr;
    const rr_bytes* described = nullptr;
    EXPECT_DONE(rrt_plan_new(Text(text), 1, &plan, &described));
    rr_free(described);
    return plan;
  }
  static rrt_fetch* NewFetch(const rrt_plan* plan, const rrt_fetch_options& options) {
    rrt_fetch* fetch = nullptr;
    EXPECT_DONE(rrt_fetch_new(plan, &options, &fetch));
    return fetch;
  }

  void ExpectReplayed(const rrt_fetch* fetch) {
    std::vector<uint8_t> ids(6), states(6, 9);
    const rrt_target target{ids.data(), ids.size(), states.data(), states.size()};
    const rrt_records* records = nullptr;
    ASSERT_DONE(rrt_fetch_result(fetch, &target, &records));
    EXPECT_THAT(TakeStatuses(records), ElementsAre("OK", "NOT_FOUND"));
    EXPECT_THAT(states, ElementsAre(0, 0, 0, 1, 1, 1));
    EXPECT_THAT(std::vector(ids.begin(), ids.begin() + 3), ElementsAre(11, 22, 33));
  }
  static std::vector<std::string> StatusesOf(const rrt_fetch* fetch) {
    const rrt_records* records = nullptr;
    EXPECT_DONE(rrt_fetch_result(fetch, nullptr, &records));
    return TakeStatuses(records);
  }
  static std::vector<std::string> TakeStatuses(const rrt_records* records) {
    std::vector<std::string> statuses;
    for (size_t i = 0; i < records->count; ++i) statuses.push_back(String(records->data[i].said.status));
    rr_free(records);
    return statuses;
  }

  rrt_plan* plan_ = nullptr;
};

TEST_F(TrainerServiceTest, AFetchBlocksOrEndsInAQueue) {
  rrt_fetch* fetch = NewFetch(plan_, {.missing = RRT_LIVE});
  const rrt_records* records = nullptr;
  EXPECT_EQ(Failure(rrt_fetch_result(fetch, nullptr, &records)).code, absl::StatusCode::kFailedPrecondition);
  ASSERT_DONE(rrt_fetch_read(fetch, c_run_, &kBlocking));
  ExpectReplayed(fetch);
  TestQueue queue;
  const rr_call call = queue.Call(5);
  ASSERT_DONE(rrt_fetch_read(fetch, c_run_, &call));
  EXPECT_EQ(queue.Wait(1).at(5).message, "");
  ExpectReplayed(fetch);
  rr_object_free(fetch);
}

TEST_F(TrainerServiceTest, FetchesOfManyPlansAreOneCall) {
  std::vector<uint8_t> ids(2 * 6), states(2 * 6, 9);
  rrt_row_fetch fetches[2];
  for (size_t i = 0; i < 2; ++i) {
    fetches[i] = {plan_, {.missing = RRT_LIVE}, {ids.data() + 6 * i, 6, states.data() + 6 * i, 6}, nullptr};
  }
  TestQueue queue;
  const rr_call call = queue.Call(5);
  ASSERT_DONE(rrt_fetch_rows(c_run_, fetches, 2, &call));
  EXPECT_EQ(queue.Wait(1).at(5).message, "");
  for (const rrt_row_fetch& fetch : fetches) {
    EXPECT_EQ(fetch.records->replayed_rows, 3);
    EXPECT_THAT(TakeStatuses(fetch.records), ElementsAre("OK", "NOT_FOUND"));
  }
  EXPECT_THAT(states, ElementsAre(0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1));
  fetches[1] = {plan_, {}, fetches[1].target, nullptr};  // b is missing.
  EXPECT_EQ(Failure(rrt_fetch_rows(c_run_, fetches, 2, &kBlocking)).reason, "NO_SAMPLE");
  EXPECT_EQ(fetches[1].records, nullptr);
}

TEST_F(TrainerServiceTest, WhatCannotBeReplayedIsNamed) {
  rrt_fetch* fetch = NewFetch(plan_, {});
  const rr_error* error = rrt_fetch_read(fetch, c_run_, &kBlocking);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(String(error->sample), "b");
  const Failure failure(error);
  EXPECT_EQ(failure.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(failure.reason, "NO_SAMPLE");
  rr_object_free(fetch);
}

TEST_F(TrainerServiceTest, NothingIsReadForOnlyLiveSequences) {
  const rrt_sequence live[] = {{.sample = Text("a"), .live = 1}, {.live = 1}};
  rrt_fetch* fetch = NewFetch(plan_, {.sequences = live, .count = 2});
  ASSERT_DONE(rrt_fetch_read(fetch, c_run_, &kBlocking));
  EXPECT_EQ(service_.Calls("Read"), 0);
  EXPECT_THAT(StatusesOf(fetch), ElementsAre("UNSPECIFIED", "UNSPECIFIED"));
  rr_object_free(fetch);
}

TEST_F(TrainerServiceTest, AReadThatFailedIsMadeAgainOrGivenUp) {
  rrt_fetch* fetch = NewFetch(plan_, {.missing = RRT_LIVE});
  service_.OnRead([](v1::ReadResponse& response) { return response.records(0).index() == 0; });  // All but b.
  EXPECT_EQ(Failure(rrt_fetch_read(fetch, c_run_, &kBrief)).code, absl::StatusCode::kDeadlineExceeded);
  service_.OnRead(nullptr);
  ASSERT_DONE(rrt_fetch_read(fetch, c_run_, &kBlocking));
  ExpectReplayed(fetch);
  service_.OnRead([](v1::ReadResponse&) { return false; });
  EXPECT_EQ(Failure(rrt_fetch_read(fetch, c_run_, &kBrief)).code, absl::StatusCode::kDeadlineExceeded);
  ASSERT_DONE(rrt_fetch_give_up(fetch, Text("late")));
  EXPECT_THAT(StatusesOf(fetch), ElementsAre("NOT_READY", "NOT_READY"));
  rr_object_free(fetch);
}

TEST_F(TrainerServiceTest, APlanOfAnotherGeometryIsRejected) {
  rrt_plan* plan = NewPlan(R"({"num_layers": 1, "num_experts": 256, "top_k": 2})");
  rrt_fetch* fetch = NewFetch(plan, {.missing = RRT_LIVE});
  EXPECT_EQ(Failure(rrt_fetch_read(fetch, c_run_, &kBlocking)).reason, "GEOMETRY_MISMATCH");
  rr_object_free(fetch);
  rr_object_free(plan);
}

TEST_F(TrainerServiceTest, AnInspectionSaysWhatCameInTime) {
  const rrt_sequence asked[] = {{.sample = Text("b")}, {.sample = Text("c")}};
  const rrt_fetch_options options{.sequences = asked, .count = 2}, nothing{};
  const rrt_records* records = nullptr;
  ASSERT_DONE(rrt_inspect(c_run_, &options, &kBlocking, &records));
  EXPECT_THAT(TakeStatuses(records), ElementsAre("NOT_FOUND", "NOT_FOUND"));
  service_.OnRead([](v1::ReadResponse& response) { return response.records(0).index() == 0; });
  ASSERT_DONE(rrt_inspect(c_run_, &options, &kBrief, &records));
  EXPECT_EQ(TakeStatuses(records).at(1), "NOT_READY");
  ASSERT_DONE(rrt_inspect(c_run_, &nothing, &kBrief, &records));
  EXPECT_THAT(TakeStatuses(records), ElementsAre());
  const rrt_fetch_options wrong{.producer = 3};
  EXPECT_EQ(Failure(rrt_inspect(c_run_, &wrong, &kBrief, &records)).field, "producer");
}

}  // namespace
}  // namespace routing_replay::client
