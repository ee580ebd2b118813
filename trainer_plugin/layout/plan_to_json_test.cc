#include "trainer_plugin/layout/plan_json.h"

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

Json ExplainedRows(const char* micro_batch) {
  const Json description = {{"geometry", {{"num_layers", 2}, {"num_experts", 8}, {"top_k", 2}}},
                            {"micro_batch", Json::parse(micro_batch)}};
  const auto explained = ExplainFromJson(description.dump());
  EXPECT_OK(explained);
  return explained.ok() ? (*explained)["rows"] : Json();
}

// One document of 13 tokens in 16 rows over two context and two tensor ranks: all filler lands on one rank.
TEST(ExplainFromJson, WhoHoldsWhat) {
  const Json rows = ExplainedRows(R"({"format": "THD", "sequences": [{"tokens": 13}], "cu_seqlens_padded": [0, 16],
    "total_rows": 16, "partition": "zigzag_per_document", "cp_size": 2, "tp_size": 2, "sequence_parallel": true})");
  EXPECT_EQ(rows.dump(), R"([{"sample":"#0","cp":0,"tp":0,"rows":[[0,4]],"without_route":[],"at":["0:4"]},)"
                         R"({"sample":"#0","cp":0,"tp":1,"rows":[],"without_route":[[12,13]],"at":["0:1"]},)"
                         R"({"sample":"#0","cp":1,"tp":0,"rows":[[4,8]],"without_route":[],"at":["0:4"]},)"
                         R"({"sample":"#0","cp":1,"tp":1,"rows":[[8,12]],"without_route":[],"at":["0:4"]},)"
                         R"json({"sample":"(padding)","cp":0,"tp":1,"rows":[],"without_route":[],"at":["1:4"]}])json");
}

TEST(ExplainFromJson, SequenceMajorRowsHaveAStride) {
  const Json rows = ExplainedRows(R"({"format": "BSHD", "sequences": [{"sample": "a", "tokens": 8}, {"tokens": 8}],
    "batch_size": 2, "padded_length": 8, "partition": "zigzag_per_sequence", "cp_size": 2})");
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].dump(),
            R"({"sample":"a","cp":0,"tp":null,"rows":[[0,2],[6,7]],"without_route":[[7,8]],"at":["0:7:2"]})");
  EXPECT_EQ(rows[2]["sample"], "#1");
  EXPECT_EQ(rows[2]["at"], Json({"1:8:2"}));
}

TEST(ExplainFromJson, TooManyRanks) {
  Json description = Moonlight();
  description["micro_batch"]["cp_size"] = 8192;
  description["micro_batch"]["cu_seqlens_padded"][1] = description["micro_batch"]["total_rows"] = 1 << 15;
  EXPECT_THAT(ExplainFromJson(description.dump()), Fails(kInvalid, Reason::kField));
}

}  // namespace
}  // namespace routing_replay::trainer
