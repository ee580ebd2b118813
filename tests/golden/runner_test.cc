// The runner notices: a changed number, an unknown kind, a broken file, nothing to run.
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

  // The first case of a committed file.
  static Json FirstCase(const std::string& file) {
    auto json = LoadGoldenFile(std::filesystem::path(RR_GOLDEN_DATA) / (file + ".json.zst"));
    EXPECT_OK(json);
    return json.ok() ? (*json)["cases"][0] : Json();
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
  std::string text_;  // Of the last run.
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
  EXPECT_EQ(RunCaseAs("layers_invalid", golden_case).failed, 1);
}

TEST_F(RunnerTest, FurtherFilesOfAKindRun) {
  EXPECT_TRUE(RunCaseAs("rows_another", FirstCase("frameworks/rows_slime_thd")).success());
  EXPECT_TRUE(RunCaseAs("layers_another", FirstCase("frameworks/layers_verl")).success());
  EXPECT_THAT(text_, ::testing::EndsWith("2 passed, 0 failed\n"));
}

TEST_F(RunnerTest, UnknownKindsFailAndThoseOfMegatronAreHandedOn) {
  EXPECT_TRUE(RunCaseAs("rows_another", FirstCase("frameworks/rows_slime_thd")).success());
  EXPECT_TRUE(RunCaseAs("router_parts", FirstCase("megatron/router_parts")).success());
  // Without megatron-core the case is listed, with it it passes.
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
