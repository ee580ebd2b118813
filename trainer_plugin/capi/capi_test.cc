// Tests the C API as a C program uses it: only capi.h, linked with the shared library.
#include "routing_replay/trainer/capi.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "client/c_api/testing/values.h"
#include "tests/support/random_routes.h"
#include "tests/support/realign_packed.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using client::Failure;
using client::String;
using client::TakeText;
using client::Text;
using nlohmann::json;
using ::testing::Each;
using ::testing::ElementsAre;

constexpr int32_t kLayers = 3, kTopK = 2;
constexpr int64_t kTokens = 6;
constexpr char kGeometry[] = R"({"num_layers": 3, "num_experts": 300, "top_k": 2})";

// Two sequences, of six tokens and of three, on one rank that owns the last two of three layers.
json Description() {
  return {{"geometry", json::parse(kGeometry)},
          {"split", {{"pipeline_size", 2}, {"first_stage_layers", 1}}},
          {"micro_batch",
           {{"format", "THD"},
            {"sequences", {{{"sample", "a"}, {"tokens", kTokens}}, {{"sample", "b"}, {"tokens", 3}}}},
            {"cu_seqlens_padded", {0, 8, 12}},
            {"total_rows", 12},
            {"partition", "contiguous"}}},
          {"rank", {{"pp", 1}}}};
}

class TrainerCapiTest : public ::testing::Test {
 protected:
  void SetUp() override { plan_ = MakePlan(Description(), &said_); }
  void TearDown() override { rr_object_free(plan_); }

  static rrt_plan* MakePlan(const json& description, json* said = nullptr) {
    const std::string text = description.dump();
    rrt_plan* plan = nullptr;
    const rr_bytes* described = nullptr;
    EXPECT_DONE(rrt_plan_new(Text(text), 1, &plan, &described));
    const json known = json::parse(TakeText(described));
    if (said != nullptr) *said = known;
    return plan;
  }
  static Failure PlanFailure(const std::string& description, int32_t ep_size = 1) {
    rrt_plan* plan = nullptr;
    const rr_bytes* described = nullptr;
    Failure failure(rrt_plan_new(Text(description), ep_size, &plan, &described));
    EXPECT_EQ(plan, nullptr);
    return failure;
  }
  rr_error* NewFetch(const rrt_fetch_options& options, rrt_fetch** fetch) {
    return rrt_fetch_new(plan_, &options, fetch);
  }

  // Returns a source that has sample a, but not b.
  rrt_source* NewSource() const {
    rrt_source* source = nullptr;
    EXPECT_DONE(rrt_local_source_new(Text(kGeometry), &source));
    EXPECT_DONE(Add(source, routes_.Tensor({0, kTokens - 1})));
    return source;
  }
  static rr_error* Add(rrt_source* source, const std::vector<int32_t>& ids) {
    const int64_t shape[] = {5, 3, 2};
    const rr_tensor tensor{.data = ids.data(),
                           .size = ids.size() * sizeof(int32_t),
                           .dtype = Text("I32"),
                           .shape = shape,
                           .shape_count = 3};
    return rrt_local_source_add(source, Text("a"), {}, {}, &tensor, nullptr, 0);
  }

  // Checks that sample a is replayed, and that b routes live.
  void ExpectRealigned(const rrt_fetch* fetch) {
    std::vector<uint8_t> indices(BufferBytes(), 0xCD);
    std::vector<uint8_t> states(12, 9);
    const rrt_target target{indices.data(), indices.size(), states.data(), states.size()};
    const rrt_records* records = nullptr;
    ASSERT_DONE(rrt_fetch_result(fetch, &target, &records));
    EXPECT_THAT(states, ElementsAre(0, 0, 0, 0, 0, 1, 2, 2, 1, 1, 1, 2));
    EXPECT_THAT(std::vector({records->replayed_rows, records->unrecorded_rows, records->pad_rows}),
                ElementsAre(5, 4, 3));
    for (int32_t slot = 0; slot < 2; ++slot) {
      const std::vector<uint16_t>& expected = routes_.layers[slot + 1];
      const uint8_t* slab = indices.data() + said_["layers"][slot]["offset"].get<size_t>();
      EXPECT_EQ(memcmp(slab, expected.data(), expected.size() * 2), 0) << "slot " << slot;
    }
    ExpectStaged(fetch, indices, states);
    EXPECT_EQ(records->fallback_sequences, 1);
    EXPECT_EQ(String(records->data[0].said.status), "OK");
    EXPECT_EQ(String(records->data[1].sample), "b");
    EXPECT_EQ(String(records->data[1].said.status), "NOT_FOUND");
    rr_free(records);
  }

  // Checks that the bytes that are staged for a device give these indices and states, too.
  void ExpectStaged(const rrt_fetch* fetch, const std::vector<uint8_t>& indices, const std::vector<uint8_t>& states) {
    rrt_staged* staged = nullptr;
    rrt_staged_shape shape;
    ASSERT_DONE(rrt_staged_new(fetch, &staged, &shape));
    EXPECT_EQ(shape.staging_offset % 256, 0);
    EXPECT_EQ(shape.bytes, shape.staging_offset + 5 * 2 * 2 * 2);  // Five rows of two layers, K = 2, in two bytes.
    EXPECT_THAT(std::vector({shape.replayed_rows, shape.unrecorded_rows, shape.pad_rows}), ElementsAre(5, 4, 3));
    std::vector<uint64_t> memory(shape.bytes / 8 + 3);
    auto* block = reinterpret_cast<uint8_t*>(memory.data());
    block += -reinterpret_cast<uintptr_t>(block) % 16;
    EXPECT_EQ(Failure(rrt_staged_write(staged, block, shape.bytes - 1)).field, "block");
    EXPECT_EQ(Failure(rrt_staged_write(staged, block + 8, shape.bytes)).code, absl::StatusCode::kInvalidArgument);
    ASSERT_DONE(rrt_staged_write(staged, block, shape.bytes));
    rr_object_free(staged);
    std::vector<uint8_t> again(indices.size(), 0xCD), again_states(states.size(), 9);
    trainer::RealignPacked(block, block + shape.staging_offset, again.data(),
                           reinterpret_cast<trainer::RowState*>(again_states.data()));
    EXPECT_EQ(again, indices);
    EXPECT_EQ(again_states, states);
    EXPECT_EQ(memcmp(block + shape.states_offset, states.data(), states.size()), 0);
  }

  size_t BufferBytes() const { return said_["buffer_bytes"].get<size_t>(); }

  rrt_plan* plan_ = nullptr;
  json said_;
  const testing::RandomRoutes routes_ =
      testing::MakeRandomRoutes(Geometry::Uniform(kLayers, 300, kTopK), kTokens - 1, 5);
};

TEST_F(TrainerCapiTest, APlanAndItsRowMap) {
  EXPECT_EQ(said_["layers"][0]["layer"], 1);
  EXPECT_EQ(said_["slices"][0]["rows"], (json{{0, 5}}));
  EXPECT_EQ(said_["row_map"]["rows"], 12);
  EXPECT_EQ(said_["layers"][1]["layer"], 2);
  EXPECT_EQ(said_["layers"][1]["id_bytes"], 2);
  EXPECT_EQ(said_["geometry"]["num_layers"], 3);
  EXPECT_EQ(said_["geometry_fingerprint"], Geometry::Uniform(kLayers, 300, kTopK).fingerprint());

  std::vector<int32_t> sequences(12, 7), rows(12, 7);
  std::vector<uint8_t> states(12, 7);
  EXPECT_EQ(Failure(rrt_plan_row_map(plan_, sequences.data(), rows.data(), states.data(), 11)).reason, "LENGTH");
  EXPECT_THAT(sequences, Each(7));
  ASSERT_DONE(rrt_plan_row_map(plan_, sequences.data(), rows.data(), states.data(), 12));
  EXPECT_THAT(sequences, ElementsAre(0, 0, 0, 0, 0, 0, -1, -1, 1, 1, 1, -1));
  EXPECT_THAT(rows, ElementsAre(0, 1, 2, 3, 4, 5, -1, -1, 0, 1, 2, -1));
  EXPECT_THAT(states, ElementsAre(0, 0, 0, 0, 0, 1, 2, 2, 0, 0, 1, 2));
}

TEST_F(TrainerCapiTest, WrongDescriptionsNameTheField) {
  json description = Description();
  description["rank"]["pp"] = 2;
  EXPECT_EQ(PlanFailure(description.dump()).code, absl::StatusCode::kInvalidArgument);
  description = Description();
  description["micro_batch"]["cp_siez"] = 2;
  EXPECT_EQ(PlanFailure(description.dump()).field, "micro_batch.cp_siez");
  EXPECT_EQ(PlanFailure(Description().dump(), 7).field, "layout.ep_size");
  EXPECT_EQ(PlanFailure("").code, absl::StatusCode::kInvalidArgument);
  rrt_fetch* fetch = nullptr;
  EXPECT_EQ(Failure(NewFetch({.missing = 3}, &fetch)).field, "missing");
  EXPECT_EQ(Failure(NewFetch({.producer = 3}, &fetch)).field, "producer");
  const rrt_sequence only_a{.sample = Text("a")};
  EXPECT_EQ(Failure(NewFetch({.sequences = &only_a, .count = 1}, &fetch)).field, "sequences");
  EXPECT_EQ(fetch, nullptr);
}

TEST_F(TrainerCapiTest, AFetchOfLocalRows) {
  rrt_source* source = NewSource();
  rrt_fetch* fetch = nullptr;
  ASSERT_EQ(NewFetch({.missing = RRT_LIVE}, &fetch), nullptr);
  std::vector<uint8_t> indices(BufferBytes(), 0xCD), states(12, 9);
  const auto code_into = [&](size_t size, size_t rows) {
    const rrt_target target{indices.data(), size, states.data(), rows};
    const rrt_records* records = nullptr;
    return Failure(rrt_fetch_result(fetch, &target, &records)).code;
  };
  EXPECT_EQ(code_into(indices.size(), 12), absl::StatusCode::kFailedPrecondition);
  rrt_staged* staged = nullptr;
  rrt_staged_shape shape;
  EXPECT_EQ(Failure(rrt_staged_new(fetch, &staged, &shape)).code, absl::StatusCode::kFailedPrecondition);
  ASSERT_DONE(rrt_source_fetch(source, fetch));
  ExpectRealigned(fetch);
  EXPECT_EQ(code_into(indices.size() - 1, 12), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_into(indices.size(), 13), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(indices, Each(0xCD));
  rr_object_free(fetch);
  rr_object_free(source);
}

TEST_F(TrainerCapiTest, WhatALocalSourceRejects) {
  rrt_source* source = NewSource();
  std::vector<int32_t> tensor = routes_.Tensor({0, kTokens - 1});
  tensor[2 * kLayers * kTopK + 3] = 300;
  Failure failure(Add(source, tensor));
  EXPECT_EQ(failure.reason, "ID_RANGE");
  EXPECT_EQ(failure.row, 2);
  EXPECT_EQ(failure.layer, 1);
  rrt_fetch* fetch = nullptr;
  ASSERT_EQ(NewFetch({}, &fetch), nullptr);
  failure = Failure(rrt_source_fetch(source, fetch));
  EXPECT_EQ(failure.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(failure.reason, "NO_SAMPLE");
  EXPECT_EQ(failure.sample, "b");
  rr_object_free(fetch);
  EXPECT_EQ(rrt_local_source_remove(source, Text("a")), 1);
  EXPECT_EQ(rrt_local_source_remove(source, Text("a")), 0);
  ASSERT_EQ(NewFetch({}, &fetch), nullptr);
  EXPECT_EQ(Failure(rrt_source_fetch(source, fetch)).sample, "a");
  rr_object_free(fetch);
  rr_object_free(source);
}

TEST(TrainerCapiRouterTest, ForwardAndBackwardInEveryDtype) {
  const uint8_t indices[] = {4, 1, 6}, states[] = {0};
  const double x[] = {0.5, -1, 2, 0, 1.5, -0.5, 3, -2}, g[] = {.1, .2, .3, .4, .5, .6, .7, .8};
  for (const int32_t dtype : {RRT_FLOAT32, RRT_FLOAT64}) {
    const rrt_router router{.dtype = dtype,
                            .score_function = 2,
                            .num_experts = 8,
                            .top_k = 3,
                            .num_groups = 1,
                            .group_topk = 1,
                            .scaling_factor = 2.5};
    alignas(8) uint8_t logits[64], grad[64], probs[64], grad_logits[64];
    uint8_t map[8], chosen[3];
    const auto store = [&](uint8_t* to, const double* from) {
      for (int e = 0; e < 8; ++e) {
        const float narrow = static_cast<float>(from[e]);
        if (dtype == RRT_FLOAT32) memcpy(to + 4 * e, &narrow, 4);
        if (dtype == RRT_FLOAT64) memcpy(to + 8 * e, &from[e], 8);
      }
    };
    const auto load = [&](const uint8_t* from, int e) {
      float narrow = 0;
      double wide = 0;
      memcpy(&narrow, from + 4 * e, 4);
      memcpy(&wide, from + 8 * e, 8);
      return dtype == RRT_FLOAT32 ? narrow : wide;
    };
    store(logits, x);
    store(grad, g);
    rrt_router_counters counters{};
    ASSERT_DONE(rrt_router_forward(&router, 1, logits, indices, states, nullptr, probs, map, chosen, &counters));
    ASSERT_DONE(rrt_router_backward(&router, 1, logits, chosen, grad, grad_logits, &counters));
    EXPECT_NEAR(load(probs, 4), 0.90328669, 5e-7);
    EXPECT_NEAR(load(probs, 1), 0.38759159, 5e-7);
    EXPECT_NEAR(load(grad_logits, 1), -0.05826854, 2e-7);
    EXPECT_NEAR(load(grad_logits, 6), 0.02829421, 2e-7);
    EXPECT_EQ(load(grad_logits, 0), 0);
    EXPECT_THAT(map, ElementsAre(0, 1, 0, 0, 1, 0, 1, 0));
    EXPECT_EQ(counters.replayed_rows, 1);
  }
}

TEST(TrainerCapiRouterTest, RejectsWhatDoesNotFit) {
  const float logits[4] = {};
  float probs[4] = {7, 7, 7, 7};
  const uint8_t indices[] = {0, 1};
  uint8_t map[4] = {};
  rrt_router_counters counters{};
  const auto forward = [&](auto change, uint8_t state = 0, int64_t rows = 1) {
    rrt_router router{.num_experts = 4, .top_k = 2, .num_groups = 1, .group_topk = 1, .scaling_factor = 1};
    change(router);
    return Failure(rrt_router_forward(&router, rows, logits, indices, &state, nullptr, probs, map, nullptr, &counters));
  };
  EXPECT_EQ(forward([](rrt_router& r) { r.dtype = 4; }).field, "router.dtype");
  EXPECT_EQ(forward([](rrt_router& r) { r.score_function = 3; }).field, "router.score_function");
  EXPECT_EQ(forward([](rrt_router& r) { r.rounding = -1; }).field, "router.rounding");
  EXPECT_EQ(forward([](rrt_router& r) { r.top_k = 5; }).field, "router.top_k");
  EXPECT_EQ(forward([](rrt_router& r) { r.scaling_factor = INFINITY; }).field, "router.scaling_factor");
  EXPECT_EQ(forward([](rrt_router&) {}, 4).field, "states");
  EXPECT_EQ(forward([](rrt_router&) {}, 0, -1).field, "rows");
  const rrt_router router{.num_experts = 4, .top_k = 2, .num_groups = 1, .group_topk = 1, .scaling_factor = 1};
  const uint8_t state = 0;
  EXPECT_EQ(
      Failure(rrt_router_forward(&router, 1, logits, nullptr, &state, nullptr, probs, map, nullptr, &counters)).field,
      "router.indices");
  EXPECT_EQ(Failure(rrt_router_backward(&router, 1, logits, indices, nullptr, probs, &counters)).field,
            "router.grad_probs");
  EXPECT_THAT(probs, Each(7));
  EXPECT_EQ(counters.replayed_rows, 0);
  EXPECT_EQ(forward([](rrt_router&) {}).code, absl::StatusCode::kOk);
  EXPECT_EQ(forward([](rrt_router&) {}, 3).code, absl::StatusCode::kOk);
  EXPECT_EQ(counters.live_rows, 1);
}

TEST(TrainerCapiRouterTest, HalfPrecisionForwardIsExactWhereHalvesAre) {
  const rrt_router router{
      .dtype = RRT_FLOAT16, .num_experts = 4, .top_k = 2, .num_groups = 1, .group_topk = 1, .scaling_factor = 1};
  const uint16_t logits[8] = {0x3C00, 0x3C00, 0x4000, 0, 0x3C00, 0x4000, 0x4000, 0};  // 1 1 2 0, 1 2 2 0
  const uint8_t indices[] = {1, 0, 3, 3}, states[] = {0, 1};
  uint16_t probs[8], half = 0x3800;
  uint8_t map[8], chosen[4];
  rrt_router_counters counters{};
  ASSERT_DONE(rrt_router_forward(&router, 2, logits, indices, states, nullptr, probs, map, chosen, &counters));
  EXPECT_THAT(probs, ElementsAre(half, half, 0, 0, 0, half, half, 0));
  EXPECT_THAT(chosen, ElementsAre(1, 0, 1, 2));
}

TEST_F(TrainerCapiTest, MoreRowsOfIdsThanAreGivenAreRejected) {
  const int32_t none = -1;
  for (const int64_t rows : {int64_t{-1}, int64_t{1}, int64_t{1} << 61, std::numeric_limits<int64_t>::max()}) {
    const int64_t of_both[] = {rows, 0};
    const rrt_route_ids ids{
        .sequences = 2, .rows = of_both, .recorded = &none, .recorded_count = 1, .seen = &none, .seen_count = 1};
    const rr_bytes* out = nullptr;
    const Failure failure(rrt_judge_alignment(plan_, &ids, &out));
    EXPECT_EQ(failure.code, absl::StatusCode::kInvalidArgument) << rows;
    EXPECT_EQ(failure.field, "recorded") << rows;
  }
}

}  // namespace
}  // namespace routing_replay
