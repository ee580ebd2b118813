#include "routing_replay/trainer/realign.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;

TEST(BufferLayout, SlabsFollowEachOtherTwoByteIdsFirst) {
  ASSERT_OK_AND_ASSIGN(
      const Geometry geometry,
      Geometry::Create(
          {.num_layers = 5, .moe_layer_ids = {0, 2, 3, 4}, .num_experts = {256, 384, 8, 512}, .top_k = {9, 6, 1, 22}}));
  for (int64_t rows : {0, 1, 7, 256, 8192}) {
    ASSERT_OK_AND_ASSIGN(const BufferLayout layout,
                         BufferLayout::Create(geometry, {.ordinals = {0, 3, 2, 1}, .rows = rows, .ep_size = 8}));
    const int64_t row_bytes[] = {9, 44, 1, 12};
    const int64_t offset[] = {56, 0, 65, 44};  // In a layout with one row.
    for (int32_t slot = 0; slot < layout.num_layers(); ++slot) {
      EXPECT_EQ(layout.row_bytes(slot), row_bytes[slot]);
      EXPECT_EQ(layout.slab_bytes(slot), rows * row_bytes[slot]);
      EXPECT_EQ(layout.slab_offset(slot), rows * offset[slot]);
    }
    EXPECT_EQ(layout.bytes(), rows * 66);
    EXPECT_EQ(layout.layer(1).layer_id, 4);
  }
}

TEST(BufferLayout, RejectsWhatCannotBe) {
  const Geometry geometry = Geometry::Uniform(4, 60, 4);
  const auto field = Fails(absl::StatusCode::kInvalidArgument, Reason::kField);
  EXPECT_OK(BufferLayout::Create(geometry, {.ordinals = {}, .rows = 0, .ep_size = 1}));
  EXPECT_OK(BufferLayout::Create(geometry, {.ordinals = {3}, .rows = kMaxLocalRows, .ep_size = 5}));
  EXPECT_THAT(BufferLayout::Create(geometry, {.ordinals = {3}, .rows = 1, .ep_size = 8}), field);
  EXPECT_THAT(BufferLayout::Create(geometry, {.ordinals = {3}, .rows = 1, .ep_size = 0}), field);
  EXPECT_THAT(BufferLayout::Create(geometry, {.ordinals = {1}, .rows = -1, .ep_size = 1}), field);
  EXPECT_THAT(BufferLayout::Create(geometry, {.ordinals = {1}, .rows = kMaxLocalRows + 1, .ep_size = 1}), field);
}

}  // namespace
}  // namespace routing_replay::trainer
