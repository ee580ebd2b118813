// The runner must detect a changed number, an unknown kind, a broken file, and a directory without cases.
#include "tests/golden/runner.h"

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/golden/golden_file.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::golden {
namespace {

using Json = nlohmann::json;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class RunnerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::path(::testing::TempDir()) /
                 absl::StrCat("golden_", ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ / name, std::ios::binary) << text;
  }

  // The first case of a file in this repository.
  static Json FirstCase(const std::string& file) {
    auto json = LoadGoldenFile(std::filesystem::path(RR_GOLDEN_DATA) / (file + ".json.zst"));
    EXPECT_OK(json);
    return json.ok() ? (*json)["cases"][0] : Json();
  }

  // The first case of the file that has a value at `pointer`, after skipping `skipped` such cases.
  static Json CaseWith(const std::string& file, const std::string& pointer, int skipped = 0) {
    auto json = LoadGoldenFile(std::filesystem::path(RR_GOLDEN_DATA) / (file + ".json.zst"));
    EXPECT_OK(json);
    if (!json.ok()) return {};
    for (const Json& golden_case : (*json)["cases"]) {
      if (golden_case.contains(Json::json_pointer(pointer)) && skipped-- == 0) return golden_case;
    }
    ADD_FAILURE() << file << " has no case with " << pointer;
    return {};
  }

  Totals Run() {
    std::ostringstream out;
    const Totals totals = RunGoldenFiles({directory_}, out);
    text_ = out.str();
    return totals;
  }

  Totals RunCaseAs(const std::string& name, const Json& golden_case) {
    Write(name + ".json", Json{{"format", 1}, {"cases", {golden_case}}}.dump());
    return Run();
  }

  std::filesystem::path directory_;
  std::string text_;  // The output of the last run.
};

TEST_F(RunnerTest, AChangedNumberFails) {
  struct Change {
    const char* file;
    const char* where;
    std::function<Json(const Json&)> change;
  };
  const auto more = [](const Json& value) { return Json(value.get<int64_t>() + 1); };
  const auto little_more = [](const Json& value) { return Json(value.get<double>() + 1e-4); };
  const auto text = [](const Json& value) {
    std::string changed = value.get<std::string>();
    changed[0] = changed[0] == 'A' ? 'B' : 'A';
    return Json(changed);
  };
  const Change changes[] = {
      {"megatron/layers", "/expect/offset_count/0/0/1", more},
      {"megatron/layers", "/input/num_layers", more},
      {"megatron/cp_slices", "/expect/positions_per_rank/1/2", more},
      {"megatron/cp_slices", "/expect/token_rows_per_rank/0/0/1", more},
      {"frameworks/layers_slime", "/expect/columns/0/3", more},
      {"frameworks/layers_slime", "/expect/megatron/0/count", more},
      {"frameworks/rows_verl_packed", "/expect/ranks/0/rows/1/1", more},
      {"frameworks/rows_verl_packed", "/expect/ranks/0/state", text},
      {"frameworks/rows_verl_packed", "/input/neutral/total_padded_rows", more},
      {"frameworks/codec_vllm", "/expect/ids_int32_le", text},
      {"frameworks/codec_vllm", "/expect/shape/0", more},
      {"frameworks/codec_sglang", "/expect/ids_int32_le", text},
      {"megatron/routing_softmax", "/expect/replay/probs/0/5", little_more},
      {"megatron/routing_softmax", "/expect/replay/grad_logits/0/0", little_more},
      {"megatron/routing_softmax", "/expect/replay/routing_map/0/0", more},
      {"megatron/routing_sigmoid", "/expect/replay/probs/0/0", little_more},
  };
  for (const Change& change : changes) {
    SetUp();
    Json golden_case = FirstCase(change.file);
    const std::string stem = std::filesystem::path(change.file).filename().string();
    EXPECT_TRUE(RunCaseAs(stem, golden_case).success()) << text_;
    Json& value = golden_case.at(Json::json_pointer(change.where));
    value = change.change(value);
    const Totals totals = RunCaseAs(stem, golden_case);
    EXPECT_FALSE(totals.success()) << change.file << change.where;
    EXPECT_EQ(totals.failed, 1);
    EXPECT_THAT(text_, HasSubstr("FAILED " + golden_case["name"].get<std::string>() + ": "));
  }
}

TEST_F(RunnerTest, AnAcceptedInvalidSplitFails) {
  Json golden_case = FirstCase("megatron/layers");
  golden_case["expect"] = {{"raises", "ValueError"}, {"where", "config"}};
  EXPECT_EQ(RunCaseAs("layers_invalid", golden_case).failed, 1);
  EXPECT_THAT(text_, HasSubstr("accepted, expected a rejection"));
}

// Megatron accepts some splits of layers_invalid. If the chunks of such a split contain each layer once, our split must
// be the same. Otherwise Megatron's result is compared with the rule of OffsetsOfOneRank.
TEST_F(RunnerTest, AcceptedSplitsAmongTheInvalidOnesAreCompared) {
  Json golden_case = FirstCase("megatron/layers");
  golden_case["expect"]["raises"] = nullptr;
  golden_case["expect"]["where"] = "nowhere";
  EXPECT_TRUE(RunCaseAs("layers_invalid", golden_case).success()) << text_;
  golden_case = CaseWith("megatron/layers_invalid", "/expect/offset_count");
  EXPECT_TRUE(RunCaseAs("layers_invalid", golden_case).success()) << text_;
  Json& count = golden_case["expect"]["offset_count"][0][0][1];
  count = count.get<int64_t>() + 1;
  EXPECT_EQ(RunCaseAs("layers_invalid", golden_case).failed, 1);
}

TEST_F(RunnerTest, FurtherFilesOfAKindRun) {
  EXPECT_TRUE(RunCaseAs("rows_another", FirstCase("frameworks/rows_slime_thd")).success());
  EXPECT_TRUE(RunCaseAs("layers_another", FirstCase("frameworks/layers_verl")).success());
  EXPECT_TRUE(RunCaseAs("r2_another", FirstCase("frameworks/r2_merge_verl")).success());
  EXPECT_TRUE(RunCaseAs("r2_further", FirstCase("frameworks/r2_pipeline_verl")).success());
  EXPECT_THAT(text_, ::testing::EndsWith("4 passed, 0 failed\n"));
}

TEST_F(RunnerTest, RowsOfUnknownPoliciesRunFromTheNeutralLayoutAlone) {
  for (const char* file : {"rows_slime_thd", "rows_miles_bshd", "r2_merge_verl"}) {
    Json golden_case = FirstCase(absl::StrCat("frameworks/", file));
    const std::string stem = absl::StrCat(std::string(file).substr(0, 2) == "r2" ? "r2" : "rows", "_another");
    std::filesystem::remove(directory_ / "r2_another.json");
    golden_case["input"]["framework"] = "another";
    EXPECT_TRUE(RunCaseAs(stem, golden_case).success()) << text_;
    EXPECT_THAT(text_, HasSubstr("  1 case without their policy: unknown policy another"));
    golden_case = FirstCase(absl::StrCat("frameworks/", file));
    golden_case["input"]["options"]["another_option"] = 3;
    EXPECT_TRUE(RunCaseAs(stem, golden_case).success()) << text_;
    EXPECT_THAT(text_, HasSubstr("  1 case without their policy: unknown policy "));
    golden_case["input"].erase("options");
    golden_case["input"].erase("lengths");
    EXPECT_TRUE(RunCaseAs(stem, golden_case).success()) << text_;
    golden_case["input"]["neutral"]["local_rows"] = golden_case["input"]["neutral"]["local_rows"].get<int64_t>() + 1;
    EXPECT_EQ(RunCaseAs(stem, golden_case).failed, 1) << text_;
    std::filesystem::remove(directory_ / (stem + ".json"));
  }
}

TEST_F(RunnerTest, PaddingOfUnknownPoliciesFails) {
  Json golden_case = FirstCase("frameworks/padding_slime");
  golden_case["input"]["framework"] = "another";
  EXPECT_EQ(RunCaseAs("padding_another", golden_case).failed, 1);
  EXPECT_THAT(text_, HasSubstr("unknown policy another"));
}

TEST_F(RunnerTest, FailingFrameworksNeedNoKnownPolicy) {
  Json golden_case = CaseWith("frameworks/rows_verl_r3", "/expect/framework_fails");
  golden_case["input"]["framework"] = "another";
  EXPECT_TRUE(RunCaseAs("rows_another", golden_case).success()) << text_;
  golden_case["input"]["neutral"]["cu_seqlens_padded"][0] = 1;
  EXPECT_EQ(RunCaseAs("rows_another", golden_case).failed, 1);
}

// The runner must check exactly the layout that an error case states: a single field, such as the partition, may decide
// whether our code rejects it.
TEST_F(RunnerTest, ErrorsAreAskedAboutTheStatedLayout) {
  Json golden_case = {{"name", "six rows on two ranks"}, {"expect", {{"error", true}}}};
  Json& neutral = golden_case["input"]["neutral"];
  neutral = {{"format", "THD"},        {"lengths", {6}},
             {"rows_available", {5}},  {"padded_lengths", {6}},
             {"total_padded_rows", 6}, {"cu_seqlens_padded", {0, 6}},
             {"row_order", "packed"},  {"partition", "zigzag_per_document"},
             {"cp_size", 2},           {"tp_size", 1},
             {"local_rows", 3},        {"sequence_parallel", false}};
  EXPECT_TRUE(RunCaseAs("rows_another", golden_case).success()) << text_;
  neutral["partition"] = "contiguous";
  EXPECT_EQ(RunCaseAs("rows_another", golden_case).failed, 1);
  for (const char* file : {"rows_slime_thd", "rows_miles_bshd", "rows_skyrl_unpacked", "rows_nemo_unpacked"}) {
    golden_case = FirstCase(absl::StrCat("frameworks/", file));
    golden_case["expect"] = {{"error", true}};
    EXPECT_EQ(RunCaseAs("rows_another", golden_case).failed, 1) << file;
    EXPECT_THAT(text_, HasSubstr("accepted, expected a rejection"));
    golden_case["input"]["framework"] = "another";
    EXPECT_EQ(RunCaseAs("rows_another", golden_case).failed, 1) << file;
  }
}

// An error case of an unknown policy cannot be run if only the policy could reject it. If the layout of the case is
// invalid by itself, the case is run.
TEST_F(RunnerTest, ErrorsOfUnknownPoliciesAreAskedAsFarAsTheyAreStated) {
  Json golden_case = CaseWith("frameworks/rows_slime_thd", "/expect/error");
  EXPECT_TRUE(RunCaseAs("rows_another", golden_case).success()) << text_;
  golden_case["input"]["framework"] = "another";
  EXPECT_EQ(RunCaseAs("rows_another", golden_case).failed, 0);
  EXPECT_THAT(text_, HasSubstr("needs a policy that is known (unknown policy another"));
  golden_case["input"].erase("neutral");
  EXPECT_EQ(RunCaseAs("rows_another", golden_case).failed, 0);
  golden_case["input"].erase("options");
  EXPECT_EQ(RunCaseAs("rows_another", golden_case).failed, 0);
  EXPECT_THAT(text_, HasSubstr("needs the options of an open layout: rows_another, 1 case"));
  golden_case = CaseWith("frameworks/rows_primerl", "/expect/error");
  golden_case["input"]["framework"] = "another";
  EXPECT_TRUE(RunCaseAs("rows_another", golden_case).success()) << text_;
}

TEST_F(RunnerTest, ErrorsWithoutALayoutAreAskedThroughTheirOptions) {
  Json golden_case = CaseWith("frameworks/rows_nemo_packed", "/expect/error", /*skipped=*/1);
  golden_case["input"].erase("neutral");
  EXPECT_TRUE(RunCaseAs("rows_another", golden_case).success()) << text_;
  golden_case = FirstCase("frameworks/rows_nemo_packed");
  golden_case["input"].erase("neutral");
  golden_case["expect"] = {{"error", true}};
  EXPECT_EQ(RunCaseAs("rows_another", golden_case).failed, 1);
}

// The runner must not need the undocumented fields megatron_row_order and record_number.
TEST_F(RunnerTest, UndocumentedFieldsAreNotNeeded) {
  Json golden_case = CaseWith("frameworks/rows_skyrl_unpacked", "/input/known_wrong");
  golden_case["input"].erase("megatron_row_order");
  EXPECT_TRUE(RunCaseAs("rows_another", golden_case).success()) << text_;
  Json& rows = golden_case["expect"]["ranks"][0]["megatron_rows"];
  rows[0] = rows.back();
  EXPECT_EQ(RunCaseAs("rows_another", golden_case).failed, 1);
  golden_case = FirstCase("frameworks/r2_merge_verl");
  golden_case["input"].erase("record_number");
  std::filesystem::remove(directory_ / "rows_another.json");
  EXPECT_TRUE(RunCaseAs("r2_another", golden_case).success()) << text_;
  golden_case["input"]["record_number"] = "local_row";
  EXPECT_EQ(RunCaseAs("r2_another", golden_case).failed, 1);
}

TEST_F(RunnerTest, UnknownKindsFailAndThoseOfMegatronAreHandedOn) {
  EXPECT_TRUE(RunCaseAs("rows_another", FirstCase("frameworks/rows_slime_thd")).success());
  EXPECT_TRUE(RunCaseAs("router_parts", FirstCase("megatron/router_parts")).success());
  // Without megatron-core, the runner lists the case among those that need megatron-core; with megatron-core, the case
  // passes.
  EXPECT_THAT(text_, AnyOf(HasSubstr("needs megatron-core: router_parts, 1 case\n"),
                           HasSubstr("router_parts.json: 1 passed, 0 failed\n")));
  EXPECT_EQ(RunCaseAs("codec_another", FirstCase("frameworks/codec_vllm")).failed, 1);
  EXPECT_THAT(text_, HasSubstr("unknown kind codec_another"));
}

TEST_F(RunnerTest, NothingRunIsNoSuccess) {
  EXPECT_FALSE(Run().success());
  EXPECT_EQ(text_, "0 passed, 0 failed\n");
  std::ostringstream out;
  EXPECT_EQ(RunGoldenFiles({directory_ / "absent"}, out).failed, 1);
}

TEST_F(RunnerTest, BrokenFilesAndCasesFail) {
  Write("rows_a.json", "{\"cases\": [");
  Write("rows_b.json.zst", "not zstd");
  Write("rows_c.json", "{}");
  Write("rows_d.json", R"({"cases": [{"name": "no input"}, 7]})");
  EXPECT_EQ(Run().failed, 5);
  EXPECT_THAT(text_, HasSubstr("FAILED no input: the case has another form"));
}

TEST_F(RunnerTest, ReadsWhatPythonWrites) {
  Write("router_parts.json", R"({"cases": [], "note": "NaN \" Infinity", "limits": [-Infinity, NaN]})");
  ASSERT_OK_AND_ASSIGN(const Json json, LoadGoldenFile(directory_ / "router_parts.json"));
  EXPECT_EQ(json["note"], "NaN \" Infinity");
  EXPECT_EQ(json["limits"], (Json{"-inf", "nan"}));
}

}  // namespace
}  // namespace routing_replay::golden
