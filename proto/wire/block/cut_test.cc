#include "proto/wire/block/cut.h"

#include <random>

#include "tests/support/random_routes.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::MakeRandomRoutes;
using testing::RandomRoutes;

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

class CutTest : public ::testing::TestWithParam<std::tuple<int, Codec>> {
 protected:
  const Geometry geometry_ = Geometry::Uniform(2, std::get<0>(GetParam()), 3);
  const Codec codec_ = std::get<1>(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Widths, CutTest,
                         ::testing::Combine(::testing::Values(4, 60, 128, 256, 257, 512, 65535),
                                            ::testing::Values(Codec::kRaw, Codec::kPacked)));

TEST_P(CutTest, PacksEveryIdAndUnpacksEveryCut) {
  constexpr int64_t kRows = 41;
  const RandomRoutes routes = MakeRandomRoutes(geometry_, kRows, 1);
  const int32_t id_bytes = geometry_.layer(1).id_bytes();
  const std::vector<uint8_t> ids = Decoded(routes.layers[1], id_bytes);
  std::vector<uint8_t> plane(geometry_.plane_bytes(1, kRows, codec_));
  EncodePlane(geometry_, 1, codec_, kRows, ids, absl::MakeSpan(plane));
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
    DecodeCut(geometry_, 1, codec_, offset, rows, cut, absl::MakeSpan(out));
    ASSERT_EQ(absl::MakeConstSpan(out), absl::MakeConstSpan(ids).subspan(row * 3 * id_bytes, rows * 3 * id_bytes));
  }
}

}  // namespace
}  // namespace routing_replay
