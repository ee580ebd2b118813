#include "trainer_plugin/layout/plan_json.h"

#include <limits>

#include <nlohmann/json.hpp>

#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using Json = nlohmann::json;
using routing_replay::testing::Fails;

// The example of capi.h.
Json Moonlight() {
  Json description = Json::parse(R"({
    "geometry": {"num_layers": 27, "num_experts": 64, "top_k": 6},
    "split": {"pipeline_size": 2, "first_stage_layers": 13},
    "micro_batch": {
      "format": "THD", "sequences": [{"sample": "math-7/0", "tokens": 13}],
      "cu_seqlens_padded": [0, 16], "total_rows": 16, "partition": "zigzag_per_document",
      "cp_size": 2, "tp_size": 2, "sequence_parallel": true
    },
    "rank": {"pp": 1, "cp": 0, "tp": 0}
  })");
  for (int i = 1; i < 27; ++i) description["geometry"]["moe_layers"].push_back(i);
  return description;
}

Json PlanOf(const Json& description) {
  const auto plan = PlanFromJson(description.dump());
  EXPECT_OK(plan);
  return plan.ok() ? Json::parse(*plan) : Json();
}

TEST(PlanFromJson, Example) {
  const Json plan = PlanOf(Moonlight());
  ASSERT_EQ(plan["layers"].size(), 14u);
  EXPECT_EQ(plan["layers"][0], Json::parse(R"({"layer": 13, "ordinal": 12, "chunk": 0})"));
  EXPECT_EQ(plan["row_map"], Json::parse(R"({"rows": 4, "replayed": 4, "unrecorded": 0, "pads": 0, "runs": [
    {"local_row": 0, "stride": 1, "count": 4, "sequence": 0, "row": 0, "state": "replayed"}]})"));
  EXPECT_EQ(plan["slices"], Json::parse(R"([{"sequence": 0, "sample": "math-7/0", "rows": [[0, 4]]}])"));
  EXPECT_EQ(plan["rows_to_read"], 4);
  EXPECT_EQ(plan["bytes_to_read"], 336);
  EXPECT_EQ(plan["layout"], Json::parse(R"({"format": "THD", "cu_seqlens_padded": [0, 16], "total_rows": 16,
    "partition": "zigzag_per_document", "cp_size": 2, "tp_size": 2, "sequence_parallel": true})"));
  EXPECT_EQ(plan["warnings"], Json::array());
}

TEST(PlanFromJson, DefaultsAndRectangle) {
  const Json plan = PlanOf(Json::parse(R"({
    "geometry": {"num_layers": 2, "num_experts": [8, 300], "top_k": 2},
    "micro_batch": {"format": "BSHD", "sequences": [{"tokens": 3}, {"tokens": 2, "recorded_rows": 2}],
                    "batch_size": 2, "padded_length": 4, "partition": "zigzag_per_sequence"}
  })"));
  EXPECT_EQ(plan["layers"].size(), 2u);
  EXPECT_EQ(plan["row_map"]["rows"], 8);
  EXPECT_EQ(plan["row_map"]["replayed"], 4);
  EXPECT_EQ(plan["row_map"]["unrecorded"], 1);
  EXPECT_EQ(plan["row_map"]["runs"][0]["stride"], 2);
  EXPECT_EQ(plan["slices"][1]["rows"], Json::parse("[[0, 2]]"));
  EXPECT_EQ(plan["bytes_to_read"], 4 * 2 * 1 + 4 * 2 * 2);
}

TEST(PlanFromJson, PolicyAndSizeOfALocalGroup) {
  Json description = Moonlight();
  description["micro_batch"] = Json::parse(R"({"sequences": [{"tokens": 13}], "padding": {"policy": "verl"},
    "local_cp_size": 2})");
  description["rank"] = Json::parse(R"({"cp": 1})");
  const Json plan = PlanOf(description);
  EXPECT_EQ(plan["layout"]["cu_seqlens_padded"], Json::parse("[0, 16]"));
  EXPECT_EQ(plan["slices"], Json::parse(R"([{"sequence": 0, "sample": "", "rows": [[4, 12]]}])"));
}

TEST(PlanFromJson, NamesWhatIsWrong) {
  const auto rejected = [](const std::string& field, auto change) {
    Json description = Moonlight();
    change(description);
    const auto plan = PlanFromJson(description.dump());
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_THAT(std::string(plan.status().message()), ::testing::StartsWith(field + ":"));
    EXPECT_EQ(GetErrorDetail(plan.status()).value_or(ErrorDetail{}).field, field);
  };
  rejected("gometry", [](Json& d) { d["gometry"] = 1; });
  rejected("geometry.experts", [](Json& d) { d["geometry"]["experts"] = 1; });
  rejected("split.vpp", [](Json& d) { d["split"]["vpp"] = 1; });
  rejected("micro_batch.cp", [](Json& d) { d["micro_batch"]["cp"] = 1; });
  rejected("micro_batch.batch_size", [](Json& d) { d["micro_batch"]["batch_size"] = 1; });
  rejected("micro_batch.sequences[0].length", [](Json& d) { d["micro_batch"]["sequences"][0]["length"] = 1; });
  rejected("rank.ep", [](Json& d) { d["rank"]["ep"] = 1; });
  rejected("geometry", [](Json& d) { d.erase("geometry"); });
  rejected("micro_batch.total_rows", [](Json& d) { d["micro_batch"].erase("total_rows"); });
  rejected("micro_batch.sequences[0].tokens", [](Json& d) { d["micro_batch"]["sequences"][0].erase("tokens"); });
  rejected("micro_batch.cu_seqlens", [](Json& d) {
    d["micro_batch"] = {{"format", "BSHD"},
                        {"batch_size", 1},
                        {"padded_length", 4},
                        {"cu_seqlens", {0, 4}},
                        {"partition", "zigzag_per_sequence"},
                        {"sequences", Json::array()}};
  });
  rejected("micro_batch.partition", [](Json& d) { d["micro_batch"].erase("partition"); });
  rejected("micro_batch.sequences", [](Json& d) { d["micro_batch"].erase("sequences"); });
  rejected("micro_batch.padding", [](Json& d) { d["micro_batch"]["padding"] = 1; });
  rejected("micro_batch.format", [](Json& d) { d["micro_batch"]["format"] = "SBHD"; });
  rejected("micro_batch.sequence_parallel", [](Json& d) { d["micro_batch"]["sequence_parallel"] = 1; });
  rejected("micro_batch.cp_size", [](Json& d) { d["micro_batch"]["cp_size"] = 2.5; });
  rejected("micro_batch.cp_size", [](Json& d) { d["micro_batch"]["cp_size"] = int64_t{1} << 40; });
  rejected("micro_batch.total_rows", [](Json& d) { d["micro_batch"]["total_rows"] = ~uint64_t{0}; });
  rejected("micro_batch.cu_seqlens_padded", [](Json& d) { d["micro_batch"]["cu_seqlens_padded"] = 16; });
  rejected("rank", [](Json& d) { d["rank"] = 3; });
  // These are rejected after the description was parsed.
  rejected("rank.pp", [](Json& d) { d["rank"]["pp"] = 2; });
  rejected("micro_batch.cu_seqlens_padded", [](Json& d) { d["micro_batch"]["total_rows"] = 20; });
  rejected("micro_batch.target_rows", [](Json& d) { d["micro_batch"]["target_rows"] = 1; });
  rejected("micro_batch.tp_size", [](Json& d) { d["micro_batch"]["tp_size"] = 0; });
  rejected("rank.tp", [](Json& d) { d["rank"]["tp"] = 99; });
  rejected("split.pipeline_size", [](Json& d) { d["split"]["pipeline_size"] = 0; });
  rejected("split.num_layers", [](Json& d) {
    d["split"] = {{"pipeline_size", 7}};
    d["rank"]["pp"] = 0;
  });
  rejected("split.layout", [](Json& d) { d["split"]["layout"] = "Ex"; });
  rejected("split.layout", [](Json& d) { d["split"]["layout"] = 1; });
  rejected("split.layout", [](Json& d) { d["split"] = {{"pipeline_size", 2}, {"layout", "Et|tL"}}; });
  rejected("split.hybrid_pattern", [](Json& d) { d["split"]["hybrid_pattern"] = "MX"; });
  rejected("split.hybrid_pattern", [](Json& d) { d["split"]["hybrid_pattern"] = 1; });
  rejected("split.mtp_num_layers", [](Json& d) { d["split"]["mtp_num_layers"] = -1; });
  rejected("native_layers", [](Json& d) { d["native_layers"] = 1; });
  rejected("megatron", [](Json& d) { d["megatron"] = Json::object(); });
  rejected("rank.model", [](Json& d) { d["rank"]["model"] = 1; });
  rejected("rank.model[0].layer_numbers", [](Json& d) { d["rank"]["model"] = {Json::object()}; });
  rejected("rank.model[0].numbers", [](Json& d) {
    d["rank"]["model"] = {{{"layer_numbers", {14}}, {"numbers", {1}}}};
  });
  rejected("rank.model", [](Json& d) { d["rank"]["model"] = {{{"layer_numbers", {1}}}}; });
  rejected("geometry.top_k", [](Json& d) { d["geometry"]["top_k"] = 0; });
  rejected("micro_batch.sequences[0]",
           [](Json& d) { d["micro_batch"]["sequences"][0]["tokens"] = std::numeric_limits<int64_t>::min(); });
}

std::vector<int> LayersOf(const Json& plan) {
  std::vector<int> ids;
  for (const Json& layer : plan["layers"]) ids.push_back(layer["layer"]);
  return ids;
}

// Moonlight's 27 layers with all stages written out. The first of two ranks has the MoE layers 1 … 8 and 18 … 22.
Json WithLayout() {
  Json description = Moonlight();
  description["split"] = {{"pipeline_size", 2}, {"layout", "Et*9|t*9|t*5|t*4mL"}, {"mtp_num_layers", 1}};
  description["rank"]["pp"] = 0;
  return description;
}

TEST(PlanFromJson, LayoutAsTextOrList) {
  Json description = WithLayout();
  EXPECT_THAT(LayersOf(PlanOf(description)), ::testing::ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 18, 19, 20, 21, 22));
  description["rank"] = {{"pp", 1}, {"chunk", 1}};
  EXPECT_THAT(LayersOf(PlanOf(description)), ::testing::ElementsAre(23, 24, 25, 26));
  Json first = {"embedding"}, last = Json::array();
  for (int i = 0; i < 13; ++i) first.push_back("decoder");
  for (int i = 0; i < 14; ++i) last.push_back("decoder");
  last.insert(last.end(), {"mtp", "loss"});
  description["split"]["layout"] = {first, last};
  description["rank"] = {{"pp", 1}};
  EXPECT_EQ(LayersOf(PlanOf(description)).front(), 13);
}

TEST(PlanFromJson, HybridPattern) {
  Json description = Moonlight();
  description["geometry"] = {{"num_layers", 8}, {"moe_layers", {3, 5, 7}}, {"num_experts", 8}, {"top_k", 2}};
  description["split"] = {{"pipeline_size", 2}, {"hybrid_pattern", "M*ME|MEME/*E"}};
  EXPECT_THAT(LayersOf(PlanOf(description)), ::testing::ElementsAre(5, 7));
}

TEST(PlanFromJson, NativeLayers) {
  Json description = WithLayout();
  description["native_layers"] = {1, 2, 3};
  const Json plan = PlanOf(description);
  EXPECT_THAT(LayersOf(plan), ::testing::ElementsAre(4, 5, 6, 7, 8, 18, 19, 20, 21, 22));
  EXPECT_EQ(plan["layers"][0]["ordinal"], 3);
  EXPECT_EQ(plan["bytes_to_read"], 10 * plan["rows_to_read"].get<int>() * 6);
  description["native_layers"] = {0};
  EXPECT_EQ(GetErrorDetail(PlanFromJson(description.dump()).status())->field, "native_layers");
}

TEST(PlanFromJson, ARunWithoutHashLayers) {
  Json description = {{"geometry", {{"num_layers", 6}, {"num_experts", 64}, {"top_k", 4}}},
                      {"split", {{"pipeline_size", 2}}},
                      {"hash_layers", {0, 1}},
                      {"micro_batch", WithLayout()["micro_batch"]},
                      {"native_layers", {0, 1}}};
  EXPECT_EQ(PlanOf(description)["layers"][0], (Json{{"layer", 2}, {"ordinal", 2}, {"chunk", 0}}));
  description["run_geometry"] = {{"num_layers", 6}, {"num_experts", 64}, {"top_k", 4}, {"moe_layers", {2, 3, 4, 5}}};
  EXPECT_EQ(PlanOf(description)["layers"], (Json{{{"layer", 2}, {"ordinal", 0}, {"chunk", 0}}}));
  // A rank that owns none of the hash layers need not list them as native.
  description.erase("native_layers");
  description["rank"] = {{"pp", 1}};
  EXPECT_THAT(LayersOf(PlanOf(description)), ::testing::ElementsAre(3, 4, 5));
  EXPECT_EQ(PlanOf(description)["layers"][0]["ordinal"], 1);
  const auto rejected = [&](Json geometry, int pp) {
    description["run_geometry"] = std::move(geometry);
    description["rank"] = {{"pp", pp}};
    const absl::Status status = PlanFromJson(description.dump()).status();
    EXPECT_EQ(GetErrorDetail(status).value_or(ErrorDetail{}).field, "run_geometry") << status;
    EXPECT_EQ(GetErrorDetail(status).value_or(ErrorDetail{}).reason, Reason::kGeometryMismatch) << status;
  };
  rejected({{"num_layers", 6}, {"num_experts", 64}, {"top_k", 4}, {"moe_layers", {2, 3, 4, 5}}}, 0);
  rejected({{"num_layers", 6}, {"num_experts", 64}, {"top_k", 4}, {"moe_layers", {3, 4, 5}}}, 1);
  rejected({{"num_layers", 6}, {"num_experts", 32}, {"top_k", 4}, {"moe_layers", {2, 3, 4, 5}}}, 1);
}

TEST(PlanFromJson, TheLiveModelBearsTheSplitOut) {
  Json description = WithLayout();
  const Json by_split = PlanOf(description);
  description["rank"]["model"] = {{{"layer_numbers", {2, 3, 4, 5, 6, 7, 8, 9}}},
                                  {{"layer_numbers", {23, 22, 21, 20, 19}}}};
  EXPECT_EQ(PlanOf(description), by_split);
  // The second chunk of the model has the layers that follow those of the first, as if there were no virtual stages.
  description["rank"]["model"][1]["layer_numbers"] = {10, 11, 12, 13, 14};
  const auto differs = PlanFromJson(description.dump());
  EXPECT_EQ(GetErrorDetail(differs.status())->field, "rank.model");
  EXPECT_THAT(std::string(differs.status().message()),
              ::testing::HasSubstr("decoder layers [9, 10, 11, 12, 13], the split gives [18, 19, 20, 21, 22]"));
}

TEST(PlanFromJson, NotJson) {
  for (const char* text : {"", "{", "[]", "null", "{\"geometry\": "}) {
    EXPECT_THAT(PlanFromJson(text), Fails(absl::StatusCode::kInvalidArgument, Reason::kField)) << text;
  }
}

}  // namespace
}  // namespace routing_replay::trainer
