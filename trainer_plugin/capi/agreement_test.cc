// Tests agreement and merged records as a C program uses them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/c_api/testing/values.h"
#include "routing_replay/trainer/capi.h"

namespace routing_replay {
namespace {

using client::Failure;
using client::TakeText;
using client::Text;
using nlohmann::json;

constexpr int32_t kRanks = 4;

// Runs all rounds, with the maxima that the ranks would compute together. Returns the code of each rank's status, and
// sets each rank's decision in `decisions`, if given.
std::array<absl::StatusCode, kRanks> AgreeOnAll(const std::array<std::string, kRanks>& seen,
                                                std::array<json, kRanks>* decisions = nullptr) {
  std::array<rrt_agreement*, kRanks> ranks{};
  for (int32_t rank = 0; rank < kRanks; ++rank) EXPECT_DONE(rrt_agreement_new(rank, Text(seen[rank]), &ranks[rank]));
  std::array<absl::StatusCode, kRanks> codes{};
  const int64_t* words = nullptr;
  while (const size_t count = rrt_agreement_words(ranks[0], &words)) {
    std::vector<int64_t> reduced(words, words + count);
    for (rrt_agreement* rank : ranks) {
      EXPECT_EQ(rrt_agreement_words(rank, &words), count);
      for (size_t i = 0; i < count; ++i) reduced[i] = std::max(reduced[i], words[i]);
    }
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      codes[rank] = Failure(rrt_agreement_push(ranks[rank], reduced.data(), count)).code;
    }
    if (codes[0] != absl::StatusCode::kOk) break;
  }
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    const rr_bytes* text = nullptr;
    if (decisions != nullptr) {
      EXPECT_DONE(rrt_agreement_decision(ranks[rank], &text));
      (*decisions)[rank] = json::parse(TakeText(text));
    }
    rr_object_free(ranks[rank]);
  }
  return codes;
}

TEST(AgreementCapiTest, AllRanksDecideAlike) {
  const json there = {{"sample", "a"},
                      {"status", "OK"},
                      {"num_tokens", 9},
                      {"content_id", 1u << 31},
                      {"oldest_weight_version", 3},
                      {"newest_weight_version", 4}};
  const json missing = {{"handle", 7}, {"status", "NOT_READY"}};
  const std::string seen =
      json({{"policy", "drop"}, {"geometry_fingerprint", 5}, {"samples", {there, missing}}}).dump();
  std::array<json, kRanks> decisions;
  AgreeOnAll({seen, seen, seen, seen}, &decisions);
  for (const json& decision : decisions) EXPECT_EQ(decision, decisions[0]);
  json decided = there;
  decided.erase("sample");
  decided["action"] = "replay";
  EXPECT_EQ(decisions[0]["samples"][0], decided);
  EXPECT_EQ(decisions[0]["samples"][1], json({{"action", "drop"}, {"status", "NOT_READY"}, {"missing_on", 0}}));
  EXPECT_EQ(decisions[0]["counts"], json({{"OK", 1}, {"NOT_READY", 1}}));
  EXPECT_EQ(decisions[0]["fallen_back"], 1);
}

TEST(AgreementCapiTest, ADescriptionThatIsWrongReachesAllRanks) {
  const std::string right = R"({"samples": []})";
  for (const std::string wrong :
       {"", "null", "[]", "{}", R"({"samples": 1})", R"({"samples": [1]})", R"({"samples": [{"status": "OK"}]})",
        R"({"samples": [{"sample": "a", "status": "FINE"}]})", R"({"samples": [], "policy": "none"})",
        R"({"samples": [{"sample": "a", "content_id": -1}]})", R"({"samples": [], "more": 1})"}) {
    const auto codes = AgreeOnAll({right, right, wrong, right});
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      const auto expected = rank == 2 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kFailedPrecondition;
      EXPECT_EQ(codes[rank], expected) << wrong << " on rank " << rank;
    }
  }
}

TEST(AgreementCapiTest, DecidesAtTheEndAndNothingIsPushedThen) {
  rrt_agreement* agreement = nullptr;
  ASSERT_DONE(rrt_agreement_new(0, Text(R"({"samples": []})"), &agreement));
  const int64_t* words = nullptr;
  const size_t count = rrt_agreement_words(agreement, &words);
  const std::vector<int64_t> first(words, words + count);
  const rr_bytes* decision = nullptr;
  EXPECT_EQ(Failure(rrt_agreement_decision(agreement, &decision)).code, absl::StatusCode::kFailedPrecondition);
  EXPECT_DONE(rrt_agreement_push(agreement, first.data(), first.size()));
  ASSERT_DONE(rrt_agreement_decision(agreement, &decision));
  EXPECT_EQ(json::parse(TakeText(decision))["replayed"], 0);
  EXPECT_EQ(rrt_agreement_words(agreement, &words), 0u);
  EXPECT_EQ(Failure(rrt_agreement_push(agreement, first.data(), 0)).code, absl::StatusCode::kFailedPrecondition);
  rr_object_free(agreement);
}

// Returns the plan of one of two pipeline stages, each of which has two layers. The micro-batch is one sequence of
// `tokens` tokens; the rest of its five rows is padding.
rrt_plan* Plan(int32_t stage, const char* sample, int64_t tokens = 4) {
  const json description = {{"geometry", {{"num_layers", 4}, {"num_experts", 16}, {"top_k", 1}}},
                            {"split", {{"pipeline_size", 2}}},
                            {"micro_batch",
                             {{"format", "THD"},
                              {"sequences", {{{"sample", sample}, {"tokens", tokens}}}},
                              {"cu_seqlens_padded", {0, 5}},
                              {"total_rows", 5},
                              {"partition", "contiguous"}}},
                            {"rank", {{"pp", stage}}}};
  const std::string text = description.dump();
  rrt_plan* plan = nullptr;
  const rr_bytes* described = nullptr;
  EXPECT_DONE(rrt_plan_new(Text(text), 1, &plan, &described));
  rr_free(described);
  return plan;
}

TEST(MergeCapiTest, RecordsOfTwoStages) {
  rrt_plan* const of_b = Plan(1, "b");
  rrt_plan* const of_three = Plan(1, "a", 3);
  const rrt_plan* plans[] = {Plan(0, "a"), Plan(1, "a"), of_b};
  const rrt_plan* of_other_shapes[] = {plans[0], of_three};
  const std::string first = "\1\2\3\4\5\6\7\1\2\3", second = "\4\3\2\1\4\7\6\5\4\3";  // [layer][row]
  const void* indices[] = {first.data(), second.data(), second.data()};
  const size_t sizes[] = {10, 10, 10};
  const rrt_merged* merged = nullptr;
  ASSERT_DONE(rrt_merge_records(plans, indices, sizes, 2, &merged));
  ASSERT_EQ(merged->count, 1u);
  EXPECT_EQ(merged->data[0].rows, 3);
  EXPECT_EQ(std::string(static_cast<const char*>(merged->data[0].planes), merged->data[0].size),
            "\1\2\3\6\7\1\4\3\2\7\6\5");
  rr_free(merged);
  const auto code = [&](const rrt_plan* const* given, size_t count) {
    return Failure(rrt_merge_records(given, indices, sizes, count, &merged)).code;
  };
  EXPECT_EQ(code(plans, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(plans, 3), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(of_other_shapes, 2), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(plans, 1), absl::StatusCode::kFailedPrecondition);
  for (const rrt_plan* plan : {plans[0], plans[1], plans[2], of_other_shapes[1]}) {
    rr_object_free(const_cast<rrt_plan*>(plan));
  }
}

}  // namespace
}  // namespace routing_replay
