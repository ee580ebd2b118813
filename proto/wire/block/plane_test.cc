#include "routing_replay/wire/plane.h"

#include <random>

#include "tests/support/random_routes.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;
using testing::MakeRandomRoutes;
using testing::RandomRoutes;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::vector<uint8_t> Decoded(const std::vector<uint16_t>& ids, int32_t id_bytes) {
  std::vector<uint8_t> bytes;
  for (const uint16_t id : ids) {
    bytes.push_back(static_cast<uint8_t>(id));
    if (id_bytes == 2) bytes.push_back(static_cast<uint8_t>(id >> 8));
  }
  return bytes;
}

// Id `index` of a plane, bit by bit.
int SlowId(const std::vector<uint8_t>& plane, int64_t index, int32_t bits) {
  int id = 0;
  for (int32_t i = 0; i < bits; ++i) {
    const int64_t bit = index * bits + i;
    id |= (plane[bit / 8] >> (bit % 8) & 1) << i;
  }
  return id;
}

class PlaneTest : public ::testing::TestWithParam<std::tuple<int, Codec>> {
 protected:
  const Geometry geometry_ = Geometry::Uniform(2, std::get<0>(GetParam()), 3);
  const Codec codec_ = std::get<1>(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Widths, PlaneTest,
                         ::testing::Combine(::testing::Values(4, 60, 128, 256, 257, 512, 65535),
                                            ::testing::Values(Codec::kRaw, Codec::kPacked)));

TEST_P(PlaneTest, PacksEveryIdAndUnpacksEveryCut) {
  constexpr int64_t kRows = 41;
  const RandomRoutes routes = MakeRandomRoutes(geometry_, kRows, 1);
  const int32_t id_bytes = geometry_.layer(1).id_bytes();
  const std::vector<uint8_t> ids = Decoded(routes.layers[1], id_bytes);
  std::vector<uint8_t> plane(geometry_.plane_bytes(1, kRows, codec_));
  ASSERT_OK(PackPlane(geometry_, 1, codec_, kRows, ids, absl::MakeSpan(plane)));
  for (size_t i = 0; i < routes.layers[1].size(); ++i) {
    ASSERT_EQ(SlowId(plane, static_cast<int64_t>(i), geometry_.id_bits(1, codec_)), routes.layers[1][i]) << i;
  }
  std::mt19937_64 random(2);
  for (int i = 0; i < 100; ++i) {
    const auto row = static_cast<int64_t>(random() % kRows);
    const auto rows = static_cast<int64_t>(random() % (kRows - row + 1));
    const int32_t offset = geometry_.cut_bit_offset(1, row, codec_);
    const absl::Span<const uint8_t> cut = absl::MakeConstSpan(plane).subspan(
        row * geometry_.row_bits(1, codec_) / 8, geometry_.cut_bytes_at(1, offset, rows, codec_));
    std::vector<uint8_t> out(geometry_.plane_bytes(1, rows, Codec::kRaw));
    ASSERT_OK(UnpackCut(geometry_, 1, codec_, offset, rows, cut, absl::MakeSpan(out)));
    ASSERT_EQ(absl::MakeConstSpan(out), absl::MakeConstSpan(ids).subspan(row * 3 * id_bytes, rows * 3 * id_bytes));
  }
}

TEST_P(PlaneTest, RefusesWhatDoesNotFitAndWritesNothing) {
  const RandomRoutes routes = MakeRandomRoutes(geometry_, 5, 1);
  std::vector<uint8_t> ids = Decoded(routes.layers[0], geometry_.layer(0).id_bytes());
  const std::vector<uint8_t> untouched(geometry_.plane_bytes(0, 5, codec_), 0x5A);
  std::vector<uint8_t> plane = untouched;
  const auto pack = [&](int32_t ordinal, Codec codec, int64_t rows) {
    return PackPlane(geometry_, ordinal, codec, rows, ids, absl::MakeSpan(plane));
  };
  EXPECT_THAT(pack(2, codec_, 5), Fails(kInvalid, Reason::kField));
  EXPECT_THAT(pack(-1, codec_, 5), Fails(kInvalid, Reason::kField));
  EXPECT_THAT(pack(0, static_cast<Codec>(9), 5), Fails(kInvalid, Reason::kField));
  EXPECT_THAT(pack(0, codec_, -1), Fails(kInvalid, Reason::kField));
  EXPECT_THAT(pack(0, codec_, kMaxRows + 1), Fails(kInvalid, Reason::kField));
  EXPECT_THAT(pack(0, codec_, 16), Fails(kInvalid, Reason::kLength));
  ids.pop_back();
  EXPECT_THAT(pack(0, codec_, 5), Fails(kInvalid, Reason::kLength));
  ids.push_back(0xFF);
  EXPECT_EQ(plane, untouched);

  std::vector<uint8_t> out(ids.size());
  const auto unpack = [&](int32_t bit_offset, int64_t rows) {
    return UnpackCut(geometry_, 0, codec_, bit_offset, rows, plane, absl::MakeSpan(out));
  };
  EXPECT_THAT(unpack(8, 5), Fails(kInvalid, Reason::kField));
  EXPECT_THAT(unpack(-1, 5), Fails(kInvalid, Reason::kField));
  EXPECT_THAT(unpack(0, 16), Fails(kInvalid, Reason::kLength));
  if (codec_ == Codec::kRaw) {
    EXPECT_THAT(unpack(1, 5), Fails(kInvalid, Reason::kField));
  }
  EXPECT_EQ(out, std::vector<uint8_t>(ids.size()));
}

TEST(PlaneIdTest, AnIdOutsideIsRefusedWithItsRowAndLayer) {
  const auto geometry =
      Geometry::Create({.num_layers = 8, .moe_layer_ids = {3, 7}, .num_experts = {100}, .top_k = {2}});
  ASSERT_OK(geometry);
  const std::vector<uint8_t> ids = {0, 1, 2, 99, 4, 100};
  std::vector<uint8_t> plane(geometry->plane_bytes(1, 3, Codec::kPacked));
  const absl::Status status = PackPlane(*geometry, 1, Codec::kPacked, 3, ids, absl::MakeSpan(plane));
  ASSERT_THAT(status, Fails(kInvalid, Reason::kIdRange));
  EXPECT_EQ(GetErrorDetail(status)->row, 2);
  EXPECT_EQ(GetErrorDetail(status)->layer, 7);
}

}  // namespace
}  // namespace routing_replay
