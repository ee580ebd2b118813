// Ranks, agreement and merged records as a C program sees them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "routing_replay/trainer/capi.h"

namespace {

using nlohmann::json;

constexpr int32_t kRanks = 4;
constexpr int64_t kMinute = 60'000;

// The error's code, or 0; frees it.
int32_t Code(rrt_error* error) {
  if (error == nullptr) return 0;
  const int32_t code = rrt_error_code(error);
  rrt_error_free(error);
  return code;
}

std::string TakeText(rrt_bytes* bytes) {
  std::string text(static_cast<const char*>(rrt_bytes_data(bytes)), rrt_bytes_size(bytes));
  rrt_bytes_free(bytes);
  return text;
}

// Runs all rounds; the decision, or nothing and the code of the error.
json Agree(rrt_collective* collective, int32_t rank, const std::string& seen, int32_t& code) {
  rrt_agreement* agreement = nullptr;
  EXPECT_EQ(rrt_agreement_new(rank, seen.data(), seen.size(), &agreement), nullptr);
  while (code == 0) {
    rrt_bytes* words = nullptr;
    EXPECT_EQ(rrt_agreement_words(agreement, &words), nullptr);
    std::vector<int64_t> values(rrt_bytes_size(words) / sizeof(int64_t));
    if (!values.empty()) std::memcpy(values.data(), rrt_bytes_data(words), rrt_bytes_size(words));
    rrt_bytes_free(words);
    if (values.empty()) break;
    code = Code(rrt_collective_all_reduce_max(collective, values.data(), values.size(), kMinute));
    if (code == 0) code = Code(rrt_agreement_push(agreement, values.data(), values.size()));
  }
  json decision;
  if (code == 0) {
    rrt_bytes* text = nullptr;
    EXPECT_EQ(rrt_agreement_decision(agreement, &text), nullptr);
    decision = json::parse(TakeText(text));
  }
  rrt_agreement_free(agreement);
  return decision;
}

class CollectiveCapiTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(rrt_local_collectives_new(kRanks, ranks_.data()), nullptr); }
  void TearDown() override {
    for (rrt_collective* rank : ranks_) rrt_collective_free(rank);
  }

  // What all ranks come to.
  void AgreeOnAll(const std::array<std::string, kRanks>& seen) {
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] { decisions_[rank] = Agree(ranks_[rank], rank, seen[rank], codes_[rank]); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::array<rrt_collective*, kRanks> ranks_ = {};
  std::array<json, kRanks> decisions_;
  std::array<int32_t, kRanks> codes_ = {};
};

TEST_F(CollectiveCapiTest, Gathers) {
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const std::string own(3, static_cast<char>('a' + rank));
      rrt_bytes* all = nullptr;
      ASSERT_EQ(rrt_collective_all_gather(ranks_[rank], own.data(), own.size(), kMinute, &all), nullptr);
      EXPECT_EQ(TakeText(all), "aaabbbcccddd");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CollectiveCapiTest, SizesAndDeadlines) {
  rrt_collective* none = nullptr;
  EXPECT_EQ(Code(rrt_local_collectives_new(0, &none)), static_cast<int>(absl::StatusCode::kInvalidArgument));
  int64_t value = 1;
  EXPECT_EQ(Code(rrt_collective_all_reduce_max(ranks_[0], &value, 1, 10)),
            static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(Code(rrt_collective_all_reduce_max(ranks_[0], &value, 1, kMinute)),
            static_cast<int>(absl::StatusCode::kFailedPrecondition));
}

TEST_F(CollectiveCapiTest, AllRanksDecideAlike) {
  const json there = {{"sample", "a"},
                      {"status", "OK"},
                      {"num_tokens", 9},
                      {"revision", 1},
                      {"content_id", 1u << 31},
                      {"oldest_weight_version", 3},
                      {"newest_weight_version", 4}};
  const json missing = {{"handle", 7}, {"status", "NOT_READY"}};
  const std::string seen =
      json({{"policy", "drop"}, {"geometry_fingerprint", 5}, {"samples", {there, missing}}}).dump();
  AgreeOnAll({seen, seen, seen, seen});
  for (const json& decision : decisions_) EXPECT_EQ(decision, decisions_[0]);
  json decided = there;
  decided.erase("sample");
  decided["action"] = "replay";
  decided["missing_everywhere"] = false;
  EXPECT_EQ(decisions_[0]["samples"][0], decided);
  EXPECT_EQ(decisions_[0]["samples"][1],
            json({{"action", "drop"}, {"status", "NOT_READY"}, {"missing_everywhere", true}, {"missing_on", 0}}));
  EXPECT_EQ(decisions_[0]["counts"], json({{"OK", 1}, {"NOT_READY", 1}}));
  EXPECT_EQ(decisions_[0]["fallen_back"], 1);
}

TEST_F(CollectiveCapiTest, ADescriptionThatIsWrongReachesAllRanks) {
  const std::string right = R"({"samples": []})";
  for (const std::string wrong :
       {"", "null", "[]", "{}", R"({"samples": 1})", R"({"samples": [1]})", R"({"samples": [{"status": "OK"}]})",
        R"({"samples": [{"sample": "a", "status": "FINE"}]})", R"({"samples": [], "policy": "none"})",
        R"({"samples": [{"sample": "a", "content_id": -1}]})", R"({"samples": [], "more": 1})"}) {
    codes_ = {};
    AgreeOnAll({right, right, wrong, right});
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      const auto expected = rank == 2 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kFailedPrecondition;
      EXPECT_EQ(codes_[rank], static_cast<int>(expected)) << wrong << " on rank " << rank;
    }
  }
}

TEST(AgreementCapiTest, DecidesAtTheEndAndNothingIsPushedThen) {
  const std::string seen = R"({"samples": []})";
  rrt_agreement* agreement = nullptr;
  ASSERT_EQ(rrt_agreement_new(0, seen.data(), seen.size(), &agreement), nullptr);
  rrt_bytes* first = nullptr;
  ASSERT_EQ(rrt_agreement_words(agreement, &first), nullptr);
  std::vector<int64_t> words(rrt_bytes_size(first) / sizeof(int64_t));
  std::memcpy(words.data(), rrt_bytes_data(first), rrt_bytes_size(first));
  rrt_bytes_free(first);
  rrt_bytes* decision = nullptr;
  EXPECT_EQ(Code(rrt_agreement_decision(agreement, &decision)),
            static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(rrt_agreement_push(agreement, words.data(), words.size()), nullptr);
  ASSERT_EQ(rrt_agreement_decision(agreement, &decision), nullptr);
  EXPECT_EQ(json::parse(TakeText(decision))["replayed"], 0);
  EXPECT_EQ(Code(rrt_agreement_push(agreement, words.data(), 0)),
            static_cast<int>(absl::StatusCode::kFailedPrecondition));
  rrt_agreement_free(agreement);
}

// Two stages of two layers each; one sequence of four tokens, if no other number is given, and a pad row.
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
  EXPECT_EQ(rrt_plan_new(text.data(), text.size(), 1, &plan), nullptr);
  return plan;
}

TEST(MergeCapiTest, RecordsOfTwoStages) {
  const rrt_plan* plans[] = {Plan(0, "a"), Plan(1, "a"), Plan(1, "b")};
  const rrt_plan* of_other_shapes[] = {plans[0], Plan(1, "a", 3)};
  EXPECT_EQ(rrt_plan_geometry_fingerprint(plans[0]), rrt_plan_geometry_fingerprint(plans[1]));
  const std::string first = "\1\2\3\4\5\6\7\1\2\3", second = "\4\3\2\1\4\7\6\5\4\3";  // [layer][row]
  const void* indices[] = {first.data(), second.data(), second.data()};
  const size_t sizes[] = {10, 10, 10};
  rrt_merged* merged = nullptr;
  ASSERT_EQ(rrt_merge_records(plans, indices, sizes, 2, &merged), nullptr);
  EXPECT_EQ(rrt_merged_sequences(merged), 1);
  int64_t rows = 0;
  rrt_bytes* planes = nullptr;
  ASSERT_EQ(rrt_merged_sequence(merged, 0, &rows, &planes), nullptr);
  EXPECT_EQ(rows, 3);
  EXPECT_EQ(TakeText(planes), "\1\2\3\6\7\1\4\3\2\7\6\5");
  constexpr auto kInvalid = static_cast<int>(absl::StatusCode::kInvalidArgument);
  for (int32_t sequence : {-1, 1}) EXPECT_EQ(Code(rrt_merged_sequence(merged, sequence, &rows, &planes)), kInvalid);
  rrt_merged_free(merged);
  EXPECT_EQ(Code(rrt_merge_records(plans, indices, sizes, 0, &merged)), kInvalid);
  EXPECT_EQ(Code(rrt_merge_records(plans, indices, sizes, 3, &merged)), kInvalid);
  EXPECT_EQ(Code(rrt_merge_records(of_other_shapes, indices, sizes, 2, &merged)), kInvalid);
  rrt_plan_free(const_cast<rrt_plan*>(of_other_shapes[1]));
  EXPECT_EQ(Code(rrt_merge_records(plans, indices, sizes, 1, &merged)),
            static_cast<int>(absl::StatusCode::kFailedPrecondition));
  for (const rrt_plan* plan : plans) rrt_plan_free(const_cast<rrt_plan*>(plan));
}

}  // namespace
