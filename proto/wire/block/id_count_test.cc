#include "proto/wire/block/id_count.h"

#include <random>

#include "proto/wire/block/cut.h"
#include "tests/support/random_routes.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;
using testing::MakeRandomRoutes;
using testing::RandomRoutes;

Block MakeBlock(const Geometry& geometry, const RandomRoutes& routes, RowRange rows, Codec codec) {
  Block block{.rows = rows, .codec = codec, .bytes = Buffer(geometry.block_bytes(rows.size(), codec))};
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    std::vector<uint8_t> ids;
    for (const uint16_t id : routes.Slice(i, {rows})) {
      ids.push_back(static_cast<uint8_t>(id));
      if (geometry.layer(i).id_bytes() == 2) ids.push_back(static_cast<uint8_t>(id >> 8));
    }
    EncodePlane(geometry, i, codec, rows.size(), ids,
                block.bytes.span().subspan(geometry.plane_offset(i, rows.size(), codec),
                                           geometry.plane_bytes(i, rows.size(), codec)));
  }
  ComputeCrc(geometry, block);
  return block;
}

TEST(IdCountTest, AsOneByOne) {
  std::mt19937_64 random(3);
  for (const auto& [experts, k] : std::vector<std::pair<int, int>>{
           {1, 1}, {2, 1}, {8, 2}, {60, 4}, {128, 8}, {256, 8}, {257, 8}, {512, 22}, {768, 12}, {65535, 3}}) {
    const Geometry geometry = Geometry::Uniform(3, experts, k);
    for (const Codec codec : {Codec::kRaw, Codec::kPacked}) {
      const RowRange rows{64, 64 + 1 + static_cast<int64_t>(random() % 192)};
      const RandomRoutes routes = MakeRandomRoutes(geometry, rows.end, random());
      const Block block = MakeBlock(geometry, routes, rows, codec);
      for (int32_t ordinal = 0; ordinal < 3; ++ordinal) {
        const int64_t begin = rows.begin + static_cast<int64_t>(random() % rows.size());
        const RowRange asked{begin, begin + 1 + static_cast<int64_t>(random() % (rows.end - begin))};
        std::vector<int64_t> expected(experts, 5), counts(experts, 5);
        for (const uint16_t id : routes.Slice(ordinal, {asked})) ++expected[id];
        ASSERT_OK(CountIds(geometry, block.view(), ordinal, asked, absl::MakeSpan(counts)));
        EXPECT_EQ(counts, expected) << experts << " " << CodecName(codec);
      }
    }
  }
}

TEST(IdCountTest, DamageIsFoundAndCountsNothing) {
  const Geometry geometry = Geometry::Uniform(2, 128, 8);
  Block block = MakeBlock(geometry, MakeRandomRoutes(geometry, 32, 1), {0, 32}, Codec::kRaw);
  block.bytes.data()[300] ^= 1;
  std::vector<int64_t> counts(128);
  EXPECT_THAT(CountIds(geometry, block.view(), 1, {0, 1}, absl::MakeSpan(counts)),
              Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
  EXPECT_EQ(counts, std::vector<int64_t>(128));
  EXPECT_OK(CountIds(geometry, block.view(), 0, {0, 1}, absl::MakeSpan(counts)));
}

}  // namespace
}  // namespace routing_replay
