// Fetches and inspections from a run as a C program sees them, against a fake server.
#include <cstring>
#include <nlohmann/json.hpp>

#include "client/c_api/c_api_fixture.h"
#include "routing_replay/trainer/capi.h"

namespace routing_replay::client {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

constexpr char kGeometry[] = R"({"num_layers": 1, "num_experts": 256, "top_k": 1})";
constexpr rr_call kBrief{.timeout_ms = 100};

std::string CodeOf(rrt_error* error) {
  if (error == nullptr) return "";
  const std::string code = json::parse(rrt_error_json(error))["code_name"];
  rrt_error_free(error);
  return code;
}

json TakeJson(rrt_bytes* bytes) {
  const auto* text = static_cast<const char*>(rrt_bytes_data(bytes));
  json value = json::parse(text, text + rrt_bytes_size(bytes));
  rrt_bytes_free(bytes);
  return value;
}

// Sample a has its three rows, b is not there.
class TrainerServiceTest : public CApiTest {
 protected:
  void SetUp() override {
    CApiTest::SetUp();
    PutRows("a", {11, 22, 33});
    plan_ = NewPlan(kGeometry);
  }
  void TearDown() override {
    rrt_plan_free(plan_);
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
    EXPECT_EQ(CodeOf(rrt_plan_new(text.data(), text.size(), 1, &plan)), "");
    return plan;
  }
  static rrt_fetch* NewFetch(const rrt_plan* plan, const json& said) {
    const std::string text = said.dump();
    rrt_fetch* fetch = nullptr;
    EXPECT_EQ(CodeOf(rrt_fetch_new(plan, text.data(), text.size(), &fetch)), "");
    return fetch;
  }
  static rrt_inspect* NewInspection(const json& sequences) {
    const std::string text = json({{"geometry", json::parse(kGeometry)}, {"sequences", sequences}}).dump();
    rrt_inspect* inspect = nullptr;
    EXPECT_EQ(CodeOf(rrt_inspect_new(text.data(), text.size(), &inspect)), "");
    return inspect;
  }

  void ExpectReplayed(const rrt_fetch* fetch) {
    std::vector<uint8_t> ids(6), states(6, 9);
    ASSERT_EQ(CodeOf(rrt_realign(plan_, fetch, ids.data(), ids.size(), states.data(), states.size(), nullptr)), "");
    EXPECT_THAT(states, ElementsAre(0, 0, 0, 1, 1, 1));
    EXPECT_THAT(std::vector(ids.begin(), ids.begin() + 3), ElementsAre(11, 22, 33));
    EXPECT_THAT(StatusesOf(fetch), ElementsAre("OK", "NOT_FOUND"));
  }
  static std::vector<std::string> StatusesOf(const rrt_fetch* fetch) {
    rrt_bytes* result = nullptr;
    EXPECT_EQ(CodeOf(rrt_fetch_result(fetch, &result)), "");
    const json told = TakeJson(result);
    return {told["sequences"][0]["status"], told["sequences"][1]["status"]};
  }
  static std::vector<std::string> StatusesOf(const rrt_inspect* inspect) {
    rrt_bytes* result = nullptr;
    EXPECT_EQ(CodeOf(rrt_inspect_result(inspect, &result)), "");
    std::vector<std::string> statuses;
    for (const json& record : TakeJson(result)) statuses.push_back(record["status"]);
    return statuses;
  }

  rrt_plan* plan_ = nullptr;
};

TEST_F(TrainerServiceTest, AFetchBlocksOrEndsInAQueue) {
  rrt_fetch* fetch = NewFetch(plan_, {{"missing", "live"}});
  rrt_bytes* result = nullptr;
  EXPECT_EQ(CodeOf(rrt_fetch_result(fetch, &result)), "FAILED_PRECONDITION");
  ASSERT_DONE(rrt_fetch_read(fetch, c_run_, &kBlocking));
  ExpectReplayed(fetch);
  TestQueue queue;
  const rr_call call = queue.Call(5);
  ASSERT_DONE(rrt_fetch_read(fetch, c_run_, &call));
  EXPECT_EQ(queue.Wait(1).at(5).message, "");
  ExpectReplayed(fetch);
  rrt_fetch_free(fetch);
}

TEST_F(TrainerServiceTest, WhatCannotBeReplayedIsNamed) {
  rrt_fetch* fetch = NewFetch(plan_, {{"missing", "strict"}});
  const rr_error* error = rrt_fetch_read(fetch, c_run_, &kBlocking);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(String(error->sample), "b");
  const Failure failure(error);
  EXPECT_EQ(failure.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(failure.reason, "NO_SAMPLE");
  rrt_fetch_free(fetch);
}

TEST_F(TrainerServiceTest, NothingIsReadForOnlyLiveSequences) {
  rrt_fetch* fetch =
      NewFetch(plan_, {{"sequences", {{{"sample", "a"}, {"live", true}}, {{"sample", ""}, {"live", true}}}}});
  ASSERT_DONE(rrt_fetch_read(fetch, c_run_, &kBlocking));
  EXPECT_EQ(service_.Calls("Read"), 0);
  EXPECT_THAT(StatusesOf(fetch), ElementsAre("UNSPECIFIED", "UNSPECIFIED"));
  rrt_fetch_free(fetch);
}

TEST_F(TrainerServiceTest, AReadThatFailedIsMadeAgainOrGivenUp) {
  rrt_fetch* fetch = NewFetch(plan_, {{"missing", "live"}});
  service_.OnRead([](v1::ReadResponse& response) { return response.records(0).index() == 0; });  // Not b.
  EXPECT_EQ(Failure(rrt_fetch_read(fetch, c_run_, &kBrief)).code, absl::StatusCode::kDeadlineExceeded);
  service_.OnRead(nullptr);
  ASSERT_DONE(rrt_fetch_read(fetch, c_run_, &kBlocking));
  ExpectReplayed(fetch);
  service_.OnRead([](v1::ReadResponse&) { return false; });
  EXPECT_EQ(Failure(rrt_fetch_read(fetch, c_run_, &kBrief)).code, absl::StatusCode::kDeadlineExceeded);
  ASSERT_EQ(CodeOf(rrt_fetch_give_up(fetch, "late", 4)), "");
  EXPECT_THAT(StatusesOf(fetch), ElementsAre("NOT_READY", "NOT_READY"));
  rrt_fetch_free(fetch);
}

TEST_F(TrainerServiceTest, APlanOfAnotherGeometryIsRefused) {
  rrt_plan* plan = NewPlan(R"({"num_layers": 1, "num_experts": 256, "top_k": 2})");
  rrt_fetch* fetch = NewFetch(plan, {{"missing", "live"}});
  EXPECT_EQ(Failure(rrt_fetch_read(fetch, c_run_, &kBlocking)).reason, "GEOMETRY_MISMATCH");
  rrt_fetch_free(fetch);
  rrt_plan_free(plan);
}

TEST_F(TrainerServiceTest, AnInspectionSaysWhatCameInTime) {
  rrt_inspect* inspect = NewInspection({{{"sample", "b"}}, {{"sample", "c"}}});
  ASSERT_DONE(rrt_inspect_read(inspect, c_run_, &kBlocking));
  EXPECT_THAT(StatusesOf(inspect), ElementsAre("NOT_FOUND", "NOT_FOUND"));
  service_.OnRead([](v1::ReadResponse& response) { return response.records(0).index() == 0; });
  ASSERT_DONE(rrt_inspect_read(inspect, c_run_, &kBrief));
  EXPECT_EQ(StatusesOf(inspect).at(1), "NOT_READY");
  rrt_inspect_free(inspect);
  inspect = NewInspection(json::array());
  ASSERT_DONE(rrt_inspect_read(inspect, c_run_, &kBrief));
  EXPECT_THAT(StatusesOf(inspect), ElementsAre());
  rrt_inspect_free(inspect);
}

}  // namespace
}  // namespace routing_replay::client
