// Checks that the runner compares every number of a case: if one is changed, the case must fail.
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/golden/golden_file.h"
#include "tests/golden/kind.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::golden {
namespace {

constexpr size_t kCasesPerFile = 20;

// Returns whether Megatron routes each row to K different experts. If not, the indices of the case cannot be replayed.
bool HasAllPairs(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  const auto pairs = input.at("num_tokens").get<int64_t>() * input.at("topk").get<int64_t>();
  const Json& expect = golden_case.at("expect");
  return !expect.contains("replay") || expect["replay"].at("map_true_count") == pairs;
}

// Fields that are not compared: fill values of rows without data, how and where a framework raised, its selection where
// it is wrong, recorded rows where no rows are expected, and Megatron's result for indices that must be rejected.
bool IsInformation(const Json& golden_case, const std::string& pointer) {
  const auto has = [&](const char* part) { return pointer.find(part) != std::string::npos; };
  const bool wrong = golden_case.at("expect").value("known_wrong", false);
  return has("/fill") || has("raise") || has("/selected_before_split") || has("/expect/where") ||
         (wrong && (has("/expect/columns") || has("/layers_after_gather"))) ||
         (has("/rows_available") && golden_case["expect"].value("framework_fails", false)) ||
         (golden_case.at("input").contains("index_shape") && !HasAllPairs(golden_case));
}

// Kinds whose strings are compared, too.
struct Mutated {
  const char* stem;
  bool texts = false;
};

Json Changed(const Json& value) {
  return value.is_string() ? Json(value.get<std::string>() + "t") : Json(value.get<int64_t>() + 1);
}

// Pointers to every number (and string) below /expect, and below /input/neutral if it must be accepted.
std::vector<std::string> CheckedValues(bool texts, const Json& golden_case) {
  std::vector<std::string> found;
  Json checked = {{"expect", golden_case.at("expect")}};
  const Json& input = golden_case.at("input");
  if (input.contains("neutral") && !checked["expect"].value("error", false)) {
    checked["input"]["neutral"] = input["neutral"];
  }
  const Json flat = checked.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    if ((value.is_number_integer() || (texts && value.is_string())) && !IsInformation(golden_case, pointer))
      found.push_back(pointer);
  }
  return found;
}

Outcome RunOf(const Kind& kind, const Json& golden_case) {
  try {
    return kind.run(golden_case);
  } catch (const Json::exception& error) {
    return Failed(error.what());
  }
}

class MutationTest : public ::testing::TestWithParam<Mutated> {};

TEST_P(MutationTest, AnyChangedValueFails) {
  ASSERT_OK_AND_ASSIGN(const auto files, FindGoldenFiles(RR_GOLDEN_DATA));
  size_t changed = 0;
  for (const auto& path : files) {
    if (!Stem(path).starts_with(GetParam().stem)) continue;
    const Kind* kind = FindKind(Stem(path));
    ASSERT_NE(kind, nullptr);
    ASSERT_OK_AND_ASSIGN(const Json file, LoadGoldenFile(path));
    const Json& cases = file["cases"];
    const size_t step = std::max<size_t>(1, cases.size() / kCasesPerFile);
    for (size_t i = 0; i < cases.size(); i += step) {
      Json golden_case = cases[i];
      for (const std::string& pointer : CheckedValues(GetParam().texts, golden_case)) {
        Json& value = golden_case.at(Json::json_pointer(pointer));
        const Json right = value;
        value = Changed(right);
        EXPECT_EQ(RunOf(*kind, golden_case).verdict, Outcome::Verdict::kFailed)
            << path << " " << golden_case["name"] << " " << pointer;
        value = right;
        ++changed;
      }
    }
  }
  EXPECT_GT(changed, 100u);
}

INSTANTIATE_TEST_SUITE_P(Layouts, MutationTest,
                         ::testing::Values(Mutated{"rows_"}, Mutated{"padding_"}, Mutated{"cp_slices"},
                                           Mutated{"layers", true}, Mutated{"layout_parse", true}, Mutated{"mtp"},
                                           Mutated{"moe_pattern"}, Mutated{"hybrid", true}, Mutated{"schedule"},
                                           Mutated{"r2_"}, Mutated{"routing_edge_indices"}));

}  // namespace
}  // namespace routing_replay::golden
