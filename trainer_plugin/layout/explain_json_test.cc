#include "trainer_plugin/layout/explain_json.h"

#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using Json = nlohmann::ordered_json;
using routing_replay::testing::Fails;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

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

TEST(ExplainFromJson, Example) {
  ASSERT_OK_AND_ASSIGN(const Json explained, ExplainFromJson(Moonlight().dump()));
  EXPECT_EQ(explained["layers"].dump(),
            R"([{"pp":0,"chunk":0,"decoder_layers":[[0,13]],"moe_layers":[[1,13]],"num_moe":12,"mtp":0},)"
            R"({"pp":1,"chunk":0,"decoder_layers":[[13,27]],"moe_layers":[[13,27]],"num_moe":14,"mtp":0}])");
  EXPECT_EQ(explained["rows"][0].dump(),
            R"({"sample":"math-7/0","cp":0,"tp":0,"rows":[[0,4]],"without_route":[],"at":["0:4"]})");
  EXPECT_EQ(explained["rows"][4].dump(),
            R"json({"sample":"(padding)","cp":0,"tp":1,"rows":[],"without_route":[],"at":["1:4"]})json");
  EXPECT_EQ(explained["rank"]["bytes_to_read"], 336);
}

TEST(DiagnoseTest, TheMistakeIsNamed) {
  Json description = Moonlight();
  // Contiguous rows of context-parallel rank 1, and layer numbers for indexes.
  description["rank"]["cp"] = 1;
  for (int row = 8; row < 12; ++row) description["observed"]["rows"].push_back({0, row});
  for (int layer = 14; layer < 28; ++layer) description["observed"]["layers"].push_back(layer);
  ASSERT_OK_AND_ASSIGN(const Observed observed, ObservedFromJson(description.dump()));
  ASSERT_OK_AND_ASSIGN(const Json found, Diagnose(observed));
  EXPECT_EQ(found[0]["of"], "rows");
  EXPECT_EQ(found[0]["mistakes"][0], "partition_contiguous");
  EXPECT_EQ(found[0]["exact"], true);
  const Json& last = found[found.size() - 1];
  EXPECT_EQ(last["of"], "layers");
  EXPECT_EQ(last["mistakes"][0], "layer_number_as_index");
}

TEST(DiagnoseTest, WhatNoMistakeGivesIsSaidSo) {
  Json description = Moonlight();
  for (int layer = 0; layer < 14; ++layer) description["observed"]["layers"].push_back(-1 - layer);
  ASSERT_OK_AND_ASSIGN(const Observed observed, ObservedFromJson(description.dump()));
  ASSERT_OK_AND_ASSIGN(const Json found, Diagnose(observed));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(found[0]["mistakes"].empty());
  EXPECT_EQ(found[0]["exact"], false);
}

TEST(DiagnoseTest, WhatWasSeenMustFit) {
  const auto refused = [](const char* observed) {
    Json description = Moonlight();
    description["observed"] = Json::parse(observed);
    const auto parsed = ObservedFromJson(description.dump());
    return parsed.ok() ? Diagnose(*parsed).status() : parsed.status();
  };
  EXPECT_THAT(ObservedFromJson(Moonlight().dump()), Fails(kInvalid, Reason::kField));
  for (const char* observed : {"{}", "[]", R"({"rows": 1})", R"({"rows": [[0]]})", R"({"rows": [[0, -1]]})",
                               R"({"rows": [[1, 0]]})", R"({"layers": ["a"]})", R"({"columns": []})"}) {
    EXPECT_THAT(refused(observed), Fails(kInvalid, Reason::kField)) << observed;
  }
  EXPECT_THAT(refused(R"({"rows": [[0, 1]]})"), Fails(kInvalid, Reason::kShape));
  EXPECT_THAT(refused(R"({"layers": [1]})"), Fails(kInvalid, Reason::kShape));
}

}  // namespace
}  // namespace routing_replay::trainer
