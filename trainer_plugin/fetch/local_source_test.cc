#include "routing_replay/trainer/source.h"

#include "routing_replay/wire/checksum.h"
#include "tests/support/random_routes.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
using routing_replay::testing::MakeRandomRoutes;
using routing_replay::testing::MakeTokens;
using routing_replay::testing::RandomRoutes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kTokens = 700;  // Three blocks.

absl::Span<const uint8_t> AsBytes(const std::vector<int32_t>& tensor) {
  return {reinterpret_cast<const uint8_t*>(tensor.data()), tensor.size() * sizeof(int32_t)};
}

TokenCheck CheckOf(const std::vector<uint32_t>& tokens, int64_t rows) {
  return {rows, Crc32c({reinterpret_cast<const uint8_t*>(tokens.data()), static_cast<size_t>(rows) * 4})};
}

// One sequence on a pipeline of two ranks with two context-parallel ranks each.
class LocalSourceTest : public ::testing::TestWithParam<std::pair<int, int>> {
 protected:
  absl::Status Add(const LocalSample& sample) {
    const std::vector<int32_t> tensor = routes_.Tensor({0, kTokens - 1});
    return source_.Add(sample, {.dtype = DType::kI32, .shape = {kTokens - 1, 4, geometry_.layer(0).top_k}},
                       AsBytes(tensor));
  }
  static MicroBatchLayout PlanLayout() {
    return {.sequences = {{kTokens, kTokens - 1}},
            .cu_seqlens_padded = {0, kTokens},
            .total_rows = kTokens,
            .partition = Partition::kZigzagPerDocument,
            .cp_size = 2};
  }
  // Fetches the rows of a plan from the source, and returns the index buffer.
  static absl::StatusOr<std::vector<uint8_t>> Realigned(const LocalSource& source, const ReplayPlan& plan,
                                                        const BufferLayout& layout) {
    const auto staged = source.Fetch(plan, {{.sample = "s"}}, {});
    if (!staged.ok()) return staged.status();
    const std::vector<LocalRow> map = ExpandRowMap(plan.row_map);
    const auto realign =
        PlanRealign(layout, {.pieces = staged->pieces, .rows = ShownRows(map), .unrecorded = staged->unrecorded});
    if (!realign.ok()) return realign.status();
    std::vector<uint8_t> indices(layout.bytes());
    std::vector<RowState> states(layout.rows());
    const absl::Status status =
        Realign(layout, *realign, staged->staging, absl::MakeSpan(indices), absl::MakeSpan(states));
    if (!status.ok()) return status;
    return indices;
  }
  ReplayPlan PlanOf(int32_t pp, int32_t cp) const {
    const auto plan = MakeReplayPlan(geometry_, *LayerTable::Create({.num_layers = 4, .pipeline_size = 2}),
                                     PlanLayout(), {.pp_rank = pp, .rows = {.cp_rank = cp}});
    EXPECT_OK(plan);
    return *plan;
  }
  absl::StatusOr<StagedRows> Fetch(const FetchSequence& sequence, MissingPolicy missing = MissingPolicy::kStrict) {
    return source_.Fetch(PlanOf(0, 0), {sequence}, {.missing = missing});
  }
  SampleStatus StatusOf(const FetchSequence& sequence) {
    const auto staged = Fetch(sequence, MissingPolicy::kLive);
    EXPECT_OK(staged);
    EXPECT_EQ(staged->fallback_sequences, staged->records[0].status == SampleStatus::kOk ? 0 : 1);
    return staged->records[0].status;
  }

  const Geometry geometry_ = Geometry::Uniform(4, GetParam().first, GetParam().second);
  const RandomRoutes routes_ = MakeRandomRoutes(geometry_, kTokens - 1, 3);
  const std::vector<uint32_t> tokens_ = MakeTokens(kTokens, 4);
  LocalSource source_{geometry_};
};

INSTANTIATE_TEST_SUITE_P(Widths, LocalSourceTest, ::testing::Values(std::pair{128, 8}, std::pair{300, 3}));

TEST_P(LocalSourceTest, EveryRankGetsItsRowsAndLayers) {
  ASSERT_OK(Add({.sample = "s", .token_ids = tokens_}));
  for (const int32_t pp : {0, 1}) {
    for (const int32_t cp : {0, 1}) {
      const ReplayPlan plan = PlanOf(pp, cp);
      ASSERT_OK_AND_ASSIGN(const StagedRows staged, source_.Fetch(plan, {{.sample = "s"}}, {}));
      ASSERT_OK_AND_ASSIGN(const BufferLayout layout,
                           BufferLayout::Create(geometry_, {.ordinals = {2 * pp, 2 * pp + 1}, .rows = kTokens / 2}));
      const std::vector<LocalRow> map = ExpandRowMap(plan.row_map);
      ASSERT_OK_AND_ASSIGN(
          const RealignPlan realign,
          PlanRealign(layout, {.pieces = staged.pieces, .rows = ShownRows(map), .unrecorded = staged.unrecorded}));
      std::vector<uint8_t> indices(layout.bytes());
      std::vector<RowState> states(layout.rows());
      ASSERT_OK(Realign(layout, realign, staged.staging, absl::MakeSpan(indices), absl::MakeSpan(states)));
      for (int32_t slot = 0; slot < 2; ++slot) {
        const auto slab = layout.slab(absl::MakeConstSpan(indices), slot);
        for (size_t row = 0; row < map.size(); ++row) {
          if (states[row] != RowState::kReplayed) continue;
          const std::vector<uint16_t> ids = routes_.Slice(2 * pp + slot, {RowRange::OfSize(map[row].row, 1)});
          for (size_t k = 0; k < ids.size(); ++k) {
            uint16_t id = 0;
            const size_t id_bytes = geometry_.layer(0).id_bytes();
            std::memcpy(&id, slab.data() + (row * ids.size() + k) * id_bytes, id_bytes);
            ASSERT_EQ(id, ids[k]) << "row " << row;
          }
        }
      }
    }
  }
}

TEST_P(LocalSourceTest, WhatARankRecordedItReplays) {
  ASSERT_OK(Add({.sample = "s"}));
  const LayerTable one_stage = *LayerTable::Create({.num_layers = 4});
  for (const int32_t cp : {0, 1}) {
    const ReplayPlan plan =
        *MakeReplayPlan(geometry_, one_stage, PlanLayout(), {.pp_rank = 0, .rows = {.cp_rank = cp}});
    const std::vector<LocalRow> map = ExpandRowMap(plan.row_map);
    ASSERT_OK_AND_ASSIGN(const BufferLayout layout,
                         BufferLayout::Create(geometry_, {.ordinals = {0, 1, 2, 3}, .rows = kTokens / 2}));
    ASSERT_OK_AND_ASSIGN(const auto buffer, Realigned(source_, plan, layout));
    LocalSource recorded(geometry_);
    ASSERT_OK(
        recorded.AddRecorded({.sample = "s", .num_tokens = kTokens, .token_ids = tokens_}, 0, layout, map, buffer));
    ASSERT_OK_AND_ASSIGN(const auto again, Realigned(recorded, plan, layout));
    EXPECT_EQ(again, buffer);
    // The source has only the rows that this context-parallel rank recorded, not those of the other one.
    const ReplayPlan other =
        *MakeReplayPlan(geometry_, one_stage, PlanLayout(), {.pp_rank = 0, .rows = {.cp_rank = 1 - cp}});
    ASSERT_OK_AND_ASSIGN(const StagedRows staged, recorded.Fetch(other, {{.sample = "s"}}, {}));
    EXPECT_EQ(TotalRows(staged.unrecorded[0]), cp == 0 ? kTokens / 2 : kTokens / 2 - 1);

    const auto rejected = Fails(absl::StatusCode::kInvalidArgument, Reason::kLength);
    const auto short_buffer = absl::MakeConstSpan(buffer).first(buffer.size() - 1);
    EXPECT_THAT(recorded.AddRecorded({.sample = "s", .num_tokens = kTokens}, 0, layout, map, short_buffer), rejected);
    EXPECT_THAT(recorded.AddRecorded({.sample = "s"}, 0, layout, map, buffer),
                Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
    ASSERT_OK_AND_ASSIGN(const BufferLayout half,
                         BufferLayout::Create(geometry_, {.ordinals = {0, 1}, .rows = kTokens / 2}));
    EXPECT_THAT(recorded.AddRecorded({.sample = "s", .num_tokens = kTokens}, 0, half, map, buffer),
                Fails(absl::StatusCode::kInvalidArgument, Reason::kGeometryMismatch));
  }
}

TEST_P(LocalSourceTest, WhatCannotBeReadFallsBackOrIsRejected) {
  EXPECT_EQ(StatusOf({.sample = "s"}), SampleStatus::kNotFound);
  ASSERT_OK(Add({.sample = "s", .token_ids = tokens_}));
  EXPECT_EQ(StatusOf({.sample = "s", .num_tokens = kTokens}), SampleStatus::kOk);
  EXPECT_EQ(StatusOf({.sample = "s", .num_tokens = kTokens + 1}), SampleStatus::kLengthMismatch);
  EXPECT_EQ(StatusOf({.sample = "s", .token_checks = {CheckOf(tokens_, 20), CheckOf(tokens_, kTokens - 1)}}),
            SampleStatus::kOk);
  TokenCheck wrong = CheckOf(tokens_, 20);
  ++wrong.crc32c;
  EXPECT_EQ(StatusOf({.sample = "s", .token_checks = {wrong}}), SampleStatus::kTokensMismatch);
  ASSERT_OK(Add({.sample = "no-tokens"}));
  EXPECT_EQ(StatusOf({.sample = "no-tokens", .token_checks = {CheckOf(tokens_, 20)}}), SampleStatus::kTokensNotKnown);
  const auto rejected = Fetch({.sample = "t"});
  EXPECT_THAT(rejected, Fails(absl::StatusCode::kFailedPrecondition, Reason::kNoSample));
  EXPECT_THAT(std::string(rejected.status().message()), HasSubstr("sample t: NOT_FOUND"));
}

TEST_P(LocalSourceTest, SamplesByHandle) {
  ASSERT_OK(Add({.sample = "s"}));
  EXPECT_EQ(StatusOf({.handle = SampleHandle("s")}), SampleStatus::kOk);
  EXPECT_EQ(StatusOf({.handle = SampleHandle("t")}), SampleStatus::kNotFound);
  const auto rejected = Fetch({.handle = 5});
  EXPECT_THAT(std::string(rejected.status().message()), HasSubstr("with handle 5: NOT_FOUND"));
  EXPECT_TRUE(source_.Remove("s"));
  EXPECT_EQ(StatusOf({.handle = SampleHandle("s")}), SampleStatus::kNotFound);
}

TEST_P(LocalSourceTest, TwoSamplesWithOneHandleAreRejected) {
  source_ = LocalSource(geometry_, [](absl::string_view id) { return id == "t" ? 1 : 5; });
  ASSERT_OK(Add({.sample = "s"}));
  ASSERT_OK(Add({.sample = "s"}));
  const absl::Status rejected = Add({.sample = "u"});
  EXPECT_THAT(rejected, Fails(absl::StatusCode::kAlreadyExists, Reason::kHandleCollision));
  EXPECT_EQ(GetErrorDetail(rejected)->sample, "u");
  EXPECT_THAT(std::string(rejected.message()), HasSubstr("sample \"u\" has the same handle as sample \"s\""));
  ASSERT_OK(Add({.sample = "t"}));
  EXPECT_EQ(StatusOf({.handle = 1}), SampleStatus::kOk);
  EXPECT_FALSE(source_.Remove("u"));
  EXPECT_EQ(StatusOf({.handle = 5}), SampleStatus::kOk);
  EXPECT_TRUE(source_.Remove("s"));
  EXPECT_OK(Add({.sample = "u"}));
}

TEST_P(LocalSourceTest, UnrecordedRowsAreTold) {
  const std::vector<int32_t> tensor = routes_.Tensor({0, kTokens - 11});
  ASSERT_OK(source_.Add({.sample = "s", .num_tokens = kTokens, .unrecorded = {{5, 15}}},
                        {.dtype = DType::kI32, .shape = {kTokens - 11, 4, geometry_.layer(0).top_k}}, AsBytes(tensor)));
  ASSERT_OK_AND_ASSIGN(const StagedRows staged, Fetch({.sample = "s"}));
  EXPECT_THAT(staged.unrecorded[0], ElementsAre(RowRange{5, 15}));
}

TEST_P(LocalSourceTest, BadRowsAreRejectedAndTheOldOnesStay) {
  ASSERT_OK(Add({.sample = "s"}));
  std::vector<int32_t> tensor = routes_.Tensor({0, kTokens - 1});
  tensor[300 * 4 * geometry_.layer(0).top_k] = 999;
  const TensorDescription description{.dtype = DType::kI32, .shape = {kTokens - 1, 4, geometry_.layer(0).top_k}};
  const absl::Status status = source_.Add({.sample = "s"}, description, AsBytes(tensor));
  EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, Reason::kIdRange));
  EXPECT_EQ(GetErrorDetail(status)->row, 300);
  EXPECT_EQ(GetErrorDetail(status)->layer, 0);
  EXPECT_THAT(Add({.sample = "s", .num_tokens = kTokens + 5}),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kRowCount));
  EXPECT_THAT(Add({.sample = "a b"}), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_EQ(StatusOf({.sample = "s", .num_tokens = kTokens}), SampleStatus::kOk);
  EXPECT_TRUE(source_.Remove("s"));
  EXPECT_FALSE(source_.Remove("s"));
}

TEST_P(LocalSourceTest, RejectsAPlanOfAnotherGeometry) {
  ASSERT_OK(Add({.sample = "s"}));
  const auto [experts, k] = GetParam();
  const auto dense_first =
      Geometry::Create({.num_layers = 4, .moe_layer_ids = {1, 2, 3}, .num_experts = {experts}, .top_k = {k}});
  for (const Geometry& other :
       {Geometry::Uniform(4, experts, k - 1), Geometry::Uniform(4, experts - 1, k), *dense_first}) {
    LocalSource source(other);
    const auto staged = source.Fetch(PlanOf(1, 0), {{.sample = "s"}}, {.missing = MissingPolicy::kLive});
    ASSERT_THAT(staged, Fails(absl::StatusCode::kInvalidArgument, Reason::kGeometryMismatch));
    EXPECT_EQ(GetErrorDetail(staged.status())->layer, 2);
  }
}

}  // namespace
}  // namespace routing_replay::trainer
