#include "trainer_plugin/layout/plan_json.h"

#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DescribedMicroBatch Read(const char* text) {
  auto described = MicroBatchFromJson(Json::parse(text));
  EXPECT_OK(described) << text;
  return described.ok() ? *std::move(described) : DescribedMicroBatch{};
}

std::string Rejection(const char* text) {
  const auto described = MicroBatchFromJson(Json::parse(text));
  EXPECT_EQ(described.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(described.status().message());
}

TEST(MicroBatchFromJson, ShapeAsThePolicyPredicts) {
  const DescribedMicroBatch described = Read(R"({
    "sequences": [{"tokens": 10}, {"sample": "b", "tokens": 3}], "cp_size": 2, "tp_size": 2, "sequence_parallel": true,
    "padding": {"policy": "verl"}})");
  EXPECT_THAT(described.layout.cu_seqlens_padded, ElementsAre(0, 16, 24));
  EXPECT_EQ(described.layout.total_rows, 24);
  EXPECT_EQ(described.layout.sequences[0].recorded_rows, 9);
  EXPECT_THAT(described.samples, ElementsAre("", "b"));
  EXPECT_THAT(described.warnings, IsEmpty());
  const DescribedMicroBatch rectangle = Read(R"({
    "sequences": [{"tokens": 10}, {"tokens": 3}], "target_rows": 64,
    "padding": {"policy": "miles", "qkv_format": "bshd", "data_pad_size_multiplier": 8}})");
  EXPECT_EQ(rectangle.layout.format, TokenFormat::kBshd);
  EXPECT_EQ(rectangle.layout.padded_length, 16);
  EXPECT_EQ(rectangle.layout.partition, Partition::kZigzagPerSequence);
  EXPECT_EQ(rectangle.layout.target_rows, 64);
}

// A policy that cannot pad this micro-batch is no obstacle if the trainer gives a padded layout.
TEST(MicroBatchFromJson, AShapeThatWasPassedNeedsNoPrediction) {
  const DescribedMicroBatch described = Read(R"({
    "sequences": [{"tokens": 4}], "cp_size": 2, "tp_size": 3, "sequence_parallel": true, "format": "THD",
    "partition": "zigzag_per_document", "cu_seqlens_padded": [0, 12], "total_rows": 12,
    "padding": {"policy": "ms_swift"}})");
  EXPECT_THAT(described.layout.cu_seqlens_padded, ElementsAre(0, 12));
  EXPECT_THAT(described.warnings, ElementsAre(HasSubstr("the policy fails: padding: get_padding_to gives 6")));
}

TEST(MicroBatchFromJson, APolicyOfAnotherFormatIsRejected) {
  EXPECT_THAT(Rejection(R"({"sequences": [{"tokens": 30}], "format": "BSHD", "padding": {"policy": "verl"}})"),
              HasSubstr("micro_batch.format: BSHD is given without its shape, but verl pads to THD"));
  EXPECT_THAT(Rejection(R"({"sequences": [{"tokens": 30}], "local_cp_size": 0, "padding": {"policy": "verl"}})"),
              HasSubstr("cp_size"));
  EXPECT_THAT(Rejection(R"({"padding": {"policy": "verl"}})"), HasSubstr("sequences"));
  EXPECT_THAT(
      Rejection(R"({"sequences": [{"tokens": 30}], "padding": {"policy": "ms_swift", "fp8_recipe": "blokwise"}})"),
      HasSubstr("fp8_recipe"));
}

TEST(MicroBatchFromJson, WhatTheTrainerPassedWins) {
  const DescribedMicroBatch described = Read(R"({
    "sequences": [{"tokens": 10}], "cp_size": 2, "cu_seqlens_padded": [0, 16], "total_rows": 16,
    "padding": {"policy": "slime", "data_pad_size_multiplier": 1}})");
  EXPECT_THAT(described.layout.cu_seqlens_padded, ElementsAre(0, 16));
  EXPECT_EQ(described.layout.partition, Partition::kZigzagPerDocument);
  EXPECT_THAT(described.warnings, ElementsAre(HasSubstr("cu_seqlens_padded[1] is 16, slime gives 12")));
  const DescribedMicroBatch contiguous = Read(R"({
    "sequences": [{"tokens": 10}], "cp_size": 2, "partition": "contiguous",
    "padding": {"policy": "slime", "data_pad_size_multiplier": 1}})");
  EXPECT_EQ(contiguous.layout.partition, Partition::kContiguous);
  EXPECT_THAT(contiguous.warnings, ElementsAre(HasSubstr("partition is contiguous, slime gives zigzag_per_document")));
}

TEST(MicroBatchFromJson, EveryPolicyByName) {
  for (const char* policy : {"megatron", "verl", "slime", "miles", "skyrl", "nemo_rl", "ms_swift", "prime_rl"}) {
    const Json json = {{"sequences", {{{"tokens", 5}}}}, {"padding", {{"policy", policy}}}};
    const auto described = MicroBatchFromJson(json);
    ASSERT_OK(described) << policy;
    EXPECT_GE(described->layout.total_rows, 5) << policy;
  }
  EXPECT_THAT(Rejection(R"({"sequences": [{"tokens": 5}], "padding": {"policy": "tunix"}})"),
              HasSubstr("micro_batch.padding.policy: must be one of megatron, verl"));
  EXPECT_THAT(Rejection(R"({"sequences": [{"tokens": 5}], "padding": {"policy": "slime", "qkv_format": "thd"}})"),
              HasSubstr("micro_batch.padding.qkv_format: unknown field"));
}

TEST(MicroBatchFromJson, OptionsOfPolicies) {
  const DescribedMicroBatch fp8 = Read(R"({
    "sequences": [{"tokens": 5}], "padding": {"policy": "verl", "fp8": "hybrid"}})");
  EXPECT_EQ(fp8.layout.total_rows, 128);
  const DescribedMicroBatch off = Read(R"({
    "sequences": [{"tokens": 5}], "padding": {"policy": "verl", "fp8": "none"}})");
  EXPECT_EQ(off.layout.total_rows, 5);
  const char* const hybridep = R"({
    "sequences": [{"tokens": 5}], "padding": {"policy": "ms_swift", "moe_flex_dispatcher_backend": "hybridep",
    "pull_request_8393": true, "seq_length": 4096}})";
  EXPECT_EQ(Read(hybridep).layout.total_rows, 4096);
  const char* const merged = R"({
    "sequences": [{"tokens": 5}], "padding": {"policy": "ms_swift", "moe_flex_dispatcher_backend": "hybridep",
    "seq_length": 4096}})";
  EXPECT_EQ(Read(merged).layout.total_rows, 5);
}

TEST(MicroBatchFromJson, TheSizeOfThisMicroBatchGoesFirst) {
  const DescribedMicroBatch local = Read(R"({
    "format": "THD", "partition": "zigzag_per_sequence", "sequences": [{"tokens": 7}], "cu_seqlens_padded": [0, 8],
    "total_rows": 8, "cp_size": 1, "local_cp_size": 4})");
  EXPECT_EQ(local.layout.cp_size, 4);
}

TEST(LayoutToJson, ReadsBack) {
  for (const char* text : {R"({"format": "THD", "cu_seqlens_padded": [0, 8], "total_rows": 8, "tokens_per_sample": 4,
                               "partition": "zigzag_per_document", "cp_size": 1, "tp_size": 2,
                               "sequence_parallel": false, "target_rows": 16})",
                           R"({"format": "BSHD", "batch_size": 1, "padded_length": 8, "row_order": "batch_major",
                               "sp_slice": "before_flatten", "partition": "contiguous_per_sequence", "cp_size": 2,
                               "tp_size": 2, "sequence_parallel": true})"}) {
    Json json = Json::parse(text);
    json["sequences"] = {{{"tokens", 5}}};
    const auto described = MicroBatchFromJson(json);
    ASSERT_OK(described);
    json.erase("sequences");
    EXPECT_EQ(Json(LayoutToJson(described->layout)), json);
  }
}

}  // namespace
}  // namespace routing_replay::trainer
