// Every layer basis, and every axis and id list that does not fit.
#include "proto/wire/payload/columns.h"

#include <random>

#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;

// MoE layers 1, 2 and 4 of 6.
Geometry MakeGeometry() {
  return *Geometry::Create({.num_layers = 6, .moe_layer_ids = {1, 2, 4}, .num_experts = {8}, .top_k = {2}});
}

absl::StatusOr<std::vector<int32_t>> Columns(LayerBasis basis, int64_t layers, std::vector<int32_t> ids = {}) {
  return MoeColumns(MakeGeometry(), {.layer_basis = basis, .layer_ids = std::move(ids)}, layers);
}

void ExpectFails(const absl::Status& status, Reason reason, absl::string_view field,
                 std::optional<int32_t> layer = {}) {
  EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, reason));
  const ErrorDetail detail = GetErrorDetail(status).value_or(ErrorDetail{});
  EXPECT_EQ(detail.field, absl::StrCat("append.tensor.", field));
  EXPECT_EQ(detail.layer, layer);
}

const std::vector<int32_t> kAll = {1, 2, 4}, kMoe = {0, 1, 2};

TEST(ColumnsTest, TheAxisDecidesWhereNothingIsSaid) {
  for (int64_t layers = 0; layers < 10; ++layers) {
    const auto columns = Columns(LayerBasis::kUnspecified, layers);
    if (layers == 6) {
      ASSERT_OK(columns);
      EXPECT_EQ(*columns, kAll);
    } else if (layers == 3) {
      ASSERT_OK(columns);
      EXPECT_EQ(*columns, kMoe);
    } else {
      ExpectFails(columns.status(), Reason::kShape, "shape");
    }
  }
}

TEST(ColumnsTest, TheAxisMustBeThatOfTheBasis) {
  for (int64_t layers = 0; layers < 10; ++layers) {
    const auto all = Columns(LayerBasis::kAllLayers, layers), moe = Columns(LayerBasis::kMoeLayers, layers);
    if (layers == 6) {
      EXPECT_EQ(*all, kAll);
    } else {
      ExpectFails(all.status(), Reason::kShape, "shape");
    }
    if (layers == 3) {
      EXPECT_EQ(*moe, kMoe);
    } else {
      ExpectFails(moe.status(), Reason::kShape, "shape");
    }
  }
}

TEST(ColumnsTest, ExplicitIdsInAnyOrderWithAnyDenseLayers) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<int32_t> ids = {1, 2, 4};
    for (const int32_t dense : {0, 3, 5}) {
      if (random() % 2 == 0) ids.push_back(dense);
    }
    std::shuffle(ids.begin(), ids.end(), random);
    ASSERT_OK_AND_ASSIGN(const auto columns, Columns(LayerBasis::kExplicit, static_cast<int64_t>(ids.size()), ids));
    ASSERT_EQ(columns.size(), 3u);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(ids[columns[i]], kAll[i]);
  }
}

TEST(ColumnsTest, ExplicitIdsThatDoNotFit) {
  constexpr LayerBasis kExplicit = LayerBasis::kExplicit;
  ExpectFails(Columns(kExplicit, 3).status(), Reason::kShape, "layer_ids");
  ExpectFails(Columns(kExplicit, 4, {1, 2, 4}).status(), Reason::kShape, "layer_ids");
  ExpectFails(Columns(kExplicit, 2, {1, 2, 4}).status(), Reason::kShape, "layer_ids");
  ExpectFails(Columns(kExplicit, 3, {1, 2, 3}).status(), Reason::kField, "layer_ids", 4);
  ExpectFails(Columns(kExplicit, 0).status(), Reason::kField, "layer_ids", 1);
  ExpectFails(Columns(kExplicit, 4, {1, 2, 4, 2}).status(), Reason::kField, "layer_ids", 2);
  ExpectFails(Columns(kExplicit, 5, {1, 0, 2, 4, 0}).status(), Reason::kField, "layer_ids", 0);
  for (const int32_t id : {-1, 6, INT32_MAX, INT32_MIN}) {
    ExpectFails(Columns(kExplicit, 4, {1, 2, 4, id}).status(), Reason::kField, "layer_ids", id);
  }
}

TEST(ColumnsTest, IdsBelongToExplicitAlone) {
  for (const LayerBasis basis : {LayerBasis::kUnspecified, LayerBasis::kAllLayers, LayerBasis::kMoeLayers}) {
    ExpectFails(Columns(basis, 3, {1, 2, 4}).status(), Reason::kField, "layer_ids");
  }
}

}  // namespace
}  // namespace routing_replay
