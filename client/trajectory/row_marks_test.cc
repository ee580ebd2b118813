#include "client/trajectory/trajectory.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/random_routes.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

// Marks of `rows` of the routes, decoded in a codec and cut into windows.
std::vector<RowMark> Marks(const Geometry& geometry, const testing::RandomRoutes& routes, RowRange rows, Codec codec,
                           int32_t window) {
  const std::vector<int32_t> tensor = routes.Tensor(rows);
  const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(tensor.data()), 4 * tensor.size());
  const TensorDescription described{.dtype = DType::kI32,
                                    .shape = {rows.size(), geometry.num_moe_layers(), geometry.layer(0).top_k}};
  const auto decoded =
      DecodeTensor(geometry, described, bytes, {.row_start = rows.begin, .block_rows = window, .codec = codec});
  EXPECT_OK(decoded.status());
  return MarkRows(geometry, *decoded);
}

TEST(RowMarksTest, EqualIdsGiveEqualMarksHoweverTheyAreStored) {
  for (const int32_t experts : {6, 256, 300, 4096}) {
    const Geometry geometry = Geometry::Uniform(3, experts, 4);
    const testing::RandomRoutes routes = testing::MakeRandomRoutes(geometry, 200, experts);
    const std::vector<RowMark> all = Marks(geometry, routes, {0, 200}, Codec::kRaw, 256);
    EXPECT_EQ(Marks(geometry, routes, {0, 200}, Codec::kPacked, 32), all);
    const std::vector<RowMark> part = Marks(geometry, routes, {37, 150}, Codec::kPacked, 64);
    EXPECT_EQ(part, std::vector<RowMark>(all.begin() + 37, all.begin() + 150));
    std::set<uint64_t> digests;
    for (const RowMark& mark : all) digests.insert(mark.digest);
    EXPECT_EQ(digests.size(), 200u);
  }
}

TEST(RowMarksTest, OrderAndLayerMatter) {
  const Geometry geometry = Geometry::Uniform(2, 8, 2);
  const std::vector<uint8_t> ids = {1, 2, 3, 4,  //
                                    2, 1, 3, 4,  //
                                    3, 4, 1, 2,  //
                                    1, 2, 3, 4};
  const auto decoded = DecodeTensor(geometry, {.dtype = DType::kU8, .shape = {4, 2, 2}}, ids, {.unrecorded = {{1, 3}}});
  ASSERT_OK(decoded);
  const std::vector<RowMark> marks = MarkRows(geometry, *decoded);
  ASSERT_EQ(marks.size(), 6u);
  EXPECT_TRUE(SameRoute(marks[0], marks[5]));
  EXPECT_FALSE(SameRoute(marks[0], marks[3]));
  EXPECT_FALSE(SameRoute(marks[0], marks[4]));
  EXPECT_EQ(marks[1], RowMark{});
  EXPECT_FALSE(SameRoute(marks[1], marks[2]));
}

}  // namespace
}  // namespace routing_replay::client
