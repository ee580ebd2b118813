#include "trainer_plugin/layout/plan_json.h"

#include "tests/support/status_matchers.h"
#include "trainer_plugin/layout/read_fields.h"

namespace routing_replay::trainer {
namespace {

using Json = nlohmann::json;
using routing_replay::testing::Fails;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DescribedMicroBatch Read(const char* text) {
  auto described = MicroBatchFromJson(WithoutNulls(Json::parse(text)));
  EXPECT_OK(described) << text;
  return described.ok() ? *std::move(described) : DescribedMicroBatch{};
}

std::string Refusal(const char* text) {
  const auto described = MicroBatchFromJson(WithoutNulls(Json::parse(text)));
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
  EXPECT_THAT(rectangle.warnings, ElementsAre(HasSubstr("batch-major")));
}

// A policy that cannot pad this micro-batch does not stand in the way of one that the trainer has padded.
TEST(MicroBatchFromJson, AShapeThatWasPassedNeedsNoPrediction) {
  const DescribedMicroBatch described = Read(R"({
    "sequences": [{"tokens": 4}], "cp_size": 2, "tp_size": 3, "sequence_parallel": true, "format": "THD",
    "partition": "zigzag_per_document", "cu_seqlens_padded": [0, 12], "total_rows": 12,
    "padding": {"policy": "ms_swift"}})");
  EXPECT_THAT(described.layout.cu_seqlens_padded, ElementsAre(0, 12));
  EXPECT_THAT(described.warnings, ElementsAre(HasSubstr("the policy makes none: padding: get_padding_to gives 6")));
}

TEST(MicroBatchFromJson, APolicyOfAnotherFormatOrGroupIsRefused) {
  EXPECT_THAT(Refusal(R"({"sequences": [{"tokens": 30}], "format": "BSHD", "padding": {"policy": "verl"}})"),
              HasSubstr("micro_batch.format: BSHD is given without its shape, verl makes THD"));
  EXPECT_THAT(Refusal(R"({"sequences": [{"tokens": 30}], "local_cp_size": 4, "dp_cp_size": 8,
                          "padding": {"policy": "verl", "local_cp_size": 2}})"),
              HasSubstr("micro_batch.padding.local_cp_size: 2, the micro-batch has 4"));
  EXPECT_THAT(Refusal(R"({"sequences": [{"tokens": 30}], "cp_size": 4, "hierarchical_cp_sizes": [2, 2],
                          "padding": {"policy": "verl", "local_cp_size": 2}})"),
              HasSubstr("hierarchical_cp_sizes"));
  EXPECT_THAT(Refusal(R"({"sequences": [{"tokens": 30}], "local_cp_size": 3, "padding": {"policy": "verl"}})"),
              HasSubstr("local_cp_size"));
  EXPECT_THAT(Refusal(R"({"sequences": [{"tokens": 30}], "left_padding": true, "padding": {"policy": "verl"}})"),
              HasSubstr("left_padding"));
  EXPECT_THAT(
      Refusal(R"({"sequences": [{"tokens": 30}], "padding": {"policy": "ms_swift", "fp8_recipe": "blokwise"}})"),
      HasSubstr("fp8_recipe"));
}

// Each sample has a group of its own, and is padded so that any group can hold it.
TEST(MicroBatchFromJson, HybridContextParallelism) {
  const DescribedMicroBatch described = Read(R"({
    "sequences": [{"tokens": 5}], "local_cp_size": 2, "dp_cp_size": 8,
    "padding": {"policy": "megatron", "hybrid_context_parallel": true}})");
  EXPECT_THAT(described.layout.cu_seqlens_padded, ElementsAre(0, 16));
  EXPECT_EQ(described.layout.cp_size, 2);
  EXPECT_THAT(Refusal(R"({"sequences": [{"tokens": 5}, {"tokens": 5}], "local_cp_size": 2, "dp_cp_size": 8,
                          "padding": {"policy": "megatron", "hybrid_context_parallel": true}})"),
              HasSubstr("a group of its own"));
}

TEST(MicroBatchFromJson, NullIsAbsent) {
  const DescribedMicroBatch described = Read(R"({
    "sequences": [{"tokens": 8}], "cu_seqlens": null, "attention_mask": null, "padding": null, "format": "THD",
    "partition": "contiguous", "cu_seqlens_padded": [0, 8], "total_rows": 8})");
  EXPECT_EQ(described.layout.total_rows, 8);
}

TEST(MicroBatchFromJson, WhatTheTrainerPassedWins) {
  const DescribedMicroBatch described = Read(R"({
    "sequences": [{"tokens": 10}], "cp_size": 2, "cu_seqlens_padded": [0, 16], "total_rows": 16,
    "padding": {"policy": "slime", "data_pad_size_multiplier": 1}})");
  EXPECT_THAT(described.layout.cu_seqlens_padded, ElementsAre(0, 16));
  EXPECT_EQ(described.layout.partition, Partition::kZigzagPerDocument);
  EXPECT_THAT(described.warnings, ElementsAre(HasSubstr("sample 0 has 16 rows, slime gives 12")));
  const DescribedMicroBatch contiguous = Read(R"({
    "sequences": [{"tokens": 10}], "cp_size": 2, "partition": "contiguous",
    "padding": {"policy": "slime", "data_pad_size_multiplier": 1}})");
  EXPECT_EQ(contiguous.layout.partition, Partition::kContiguous);
  EXPECT_THAT(contiguous.warnings, ElementsAre(HasSubstr("partition is contiguous, slime gives zigzag_per_document")));
}

TEST(MicroBatchFromJson, EveryPolicyByName) {
  for (const char* policy :
       {"megatron", "verl", "slime", "miles", "skyrl", "nemo_rl", "ms_swift", "areal", "prime_rl"}) {
    const Json json = {{"sequences", {{{"tokens", 5}}}}, {"padding", {{"policy", policy}}}};
    const auto described = MicroBatchFromJson(json);
    ASSERT_OK(described) << policy;
    EXPECT_GE(described->layout.total_rows, 5) << policy;
  }
  EXPECT_THAT(Refusal(R"({"sequences": [{"tokens": 5}], "padding": {"policy": "tunix"}})"),
              HasSubstr("micro_batch.padding.policy: must be one of megatron, verl"));
  EXPECT_THAT(Refusal(R"({"sequences": [{"tokens": 5}], "padding": {"policy": "slime", "qkv_format": "thd"}})"),
              HasSubstr("micro_batch.padding.qkv_format: unknown field"));
}

TEST(MicroBatchFromJson, OptionsOfPolicies) {
  const DescribedMicroBatch fp8 = Read(R"({
    "sequences": [{"tokens": 5}], "padding": {"policy": "verl", "fp8": "hybrid", "csa_window_size": null}})");
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

TEST(MicroBatchFromJson, RealAndPaddedBoundaries) {
  const DescribedMicroBatch both = Read(R"({
    "format": "THD", "partition": "zigzag_per_document", "cu_seqlens": [0, 5, 8], "cu_seqlens_padded": [0, 8, 12],
    "total_rows": 12, "cp_size": 2})");
  EXPECT_EQ(both.layout.sequences[0].tokens, 5);
  EXPECT_EQ(both.layout.sequences[1].recorded_rows, 2);
  EXPECT_THAT(both.samples, ElementsAre("", ""));
  const DescribedMicroBatch real = Read(R"({
    "format": "THD", "partition": "zigzag_per_document", "cu_seqlens": [0, 5, 8], "total_rows": 8,
    "sequences": [{"sample": "a"}]})");
  EXPECT_THAT(real.layout.cu_seqlens_padded, ElementsAre(0, 5, 8));
  EXPECT_EQ(real.layout.sequences.size(), 1u);
  EXPECT_THAT(Refusal(R"({"format": "THD", "partition": "contiguous", "cu_seqlens": [0, 5], "total_rows": 5,
    "sequences": [{"tokens": 4}]})"),
              HasSubstr("sequences[0].tokens: 4, the micro-batch has 5"));
}

TEST(MicroBatchFromJson, LeftPaddedRectangles) {
  const DescribedMicroBatch kept = Read(R"({
    "format": "BSHD", "partition": "zigzag_per_sequence", "batch_size": 2, "padded_length": 4, "left_padding": true,
    "attention_mask": [[0, 0, 1, 1], [1, 1, 1, true]]})");
  EXPECT_EQ(kept.layout.sequences[0].first_row, 2);
  EXPECT_EQ(kept.layout.sequences[0].tokens, 2);
  const DescribedMicroBatch stripped = Read(R"({
    "attention_mask": [[0, 0, 1, 1], [1, 1, 1, 1]], "padding": {"policy": "skyrl"}, "sequences": [{}, {"sample": "b"}]})");
  EXPECT_THAT(stripped.layout.cu_seqlens_padded, ElementsAre(0, 2, 6));
  EXPECT_THAT(
      Refusal(R"({"attention_mask": [[1, 1]], "padding": {"policy": "skyrl"}, "sequences": [{}, {"tokens": 1}]})"),
      HasSubstr("has 1 rows for 2 sequences"));
  for (const char* mask : {"3", "[1]", "[[1], [1, 1]]", "[[2]]", "[[]]", "[[1, 0, 1]]"}) {
    Refusal(absl::StrCat(R"({"padding": {"policy": "skyrl"}, "attention_mask": )", mask, "}").c_str());
  }
}

TEST(MicroBatchFromJson, MediaAreExpanded) {
  const DescribedMicroBatch described = Read(R"({
    "sequences": [{"tokens": 10, "media_rows": [256]}], "padding": {"policy": "megatron"}})");
  EXPECT_EQ(described.layout.sequences[0].tokens, 265);
  EXPECT_EQ(described.layout.sequences[0].recorded_rows, 264);
  const DescribedMicroBatch before = Read(R"({
    "sequences": [{"tokens": 10, "media_rows": [256], "recorded_rows": 9}], "padding": {"policy": "megatron"}})");
  EXPECT_THAT(before.warnings, ElementsAre(HasSubstr("rows count after media are expanded")));
}

TEST(MicroBatchFromJson, MasksOfEveryShape) {
  const char* const mask = R"({"format": "BSHD", "partition": "zigzag_per_sequence", "batch_size": 4,
    "padded_length": 4, "left_padding": true,
    "attention_mask": [[0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 1, 0]]})";
  const DescribedMicroBatch kept = Read(mask);
  const int64_t first[] = {2, 0, 0, 1}, tokens[] = {2, 4, 0, 2}, recorded[] = {1, 3, 0, 1};
  ASSERT_EQ(kept.layout.sequences.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(kept.layout.sequences[i],
              (SequenceShape{.tokens = tokens[i], .recorded_rows = recorded[i], .first_row = first[i]}));
  }
}

TEST(MicroBatchFromJson, BoundariesAndMediaThatCannotBe) {
  const auto fails = [](const char* field, const char* value, Reason reason) {
    Json json = {{"padding", {{"policy", "skyrl"}}}, {"sequences", {{{"tokens", 2}}}}};
    (std::string(field) == "media_rows" ? json["sequences"][0] : json)[field] = Json::parse(value);
    EXPECT_THAT(MicroBatchFromJson(json), Fails(absl::StatusCode::kInvalidArgument, reason)) << field << value;
  };
  for (const char* boundaries : {"[1, 2]", "[0, 2, 1]"}) fails("cu_seqlens", boundaries, Reason::kShape);
  fails("media_rows", "[256, 1, 64]", Reason::kShape);
  fails("media_rows", "[0]", Reason::kField);
  fails("media_rows", "[4611686018427387904]", Reason::kField);
  EXPECT_EQ(Read(R"({"sequences": [{"tokens": 10, "media_rows": [256, 1, 64]}], "padding": {"policy": "megatron"}})")
                .layout.sequences[0]
                .tokens,
            10 + 255 + 0 + 63);
}

TEST(MicroBatchFromJson, GroupsOfContextParallelism) {
  const DescribedMicroBatch local = Read(R"({
    "format": "THD", "partition": "zigzag_per_sequence", "sequences": [{"tokens": 7}], "cu_seqlens_padded": [0, 8],
    "total_rows": 8, "cp_size": 1, "local_cp_size": 4, "dp_cp_size": 8})");
  EXPECT_EQ(local.layout.cp_size, 4);
  EXPECT_EQ(local.dp_cp_size, 8);
  const std::string start = R"({"padding": {"policy": "megatron"}, "sequences": [{"tokens": 7}], )";
  EXPECT_OK(MicroBatchFromJson(Json::parse(start + R"("cp_size": 8, "hierarchical_cp_sizes": [2, 4]})")));
  EXPECT_THAT(Refusal((start + R"("cp_size": 8, "hierarchical_cp_sizes": [2, 2]})").c_str()),
              HasSubstr("2 x 2 is not cp_size = 8"));
  EXPECT_THAT(Refusal((start + R"("cp_size": 8, "hierarchical_cp_sizes": [0]})").c_str()),
              HasSubstr("hierarchical_cp_sizes"));
  Refusal((start + R"("cp_size": 8, "hierarchical_cp_sizes": [1048576, 1048576, 1048576, 1048576]})").c_str());
  EXPECT_THAT(Refusal((start + R"("dp_cp_size": 8, "local_cp_size": 3})").c_str()), HasSubstr("power of two"));
  EXPECT_THAT(Refusal((start + R"("dp_cp_size": 8})").c_str()), HasSubstr("without local_cp_size"));
}

TEST(LocalCpRank, GroupsAreNeighbours) {
  for (int32_t rank = 0; rank < 8; ++rank) EXPECT_EQ(*LocalCpRank(rank, 8, 4), rank % 4);
  EXPECT_THAT(LocalCpRank(8, 8, 4), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_THAT(LocalCpRank(0, 12, 3), Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
  EXPECT_THAT(LocalCpRank(0, 12, 8), Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
  EXPECT_THAT(LocalCpRank(0, 0, 1), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
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
