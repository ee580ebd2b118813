// Compares blocks, cuts and merges with a reference that works bit by bit.
#include "proto/wire/block/block.h"

#include <random>

#include "proto/wire/simd_targets_test_util.h"
#include "routing_replay/wire/checksum.h"
#include "tests/support/first_difference.h"
#include "tests/support/random_routes.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;
using testing::FirstDifference;
using testing::MakeRandomRoutes;
using testing::RandomRoutes;

// Packs all ids into a stream of fields of `bits` bits, and returns the bytes that hold the ids [first_id, end_id).
// Bits of other ids are 0.
std::vector<uint8_t> SlowCut(const std::vector<uint16_t>& ids, int bits, int64_t first_id, int64_t end_id) {
  const int64_t first = first_id * bits, end = end_id * bits;
  std::vector<uint8_t> bytes((first % 8 + end - first + 7) / 8, 0);
  for (int64_t bit = first; bit < end; ++bit) {
    const int value = ids[bit / bits] >> (bit % bits) & 1;
    const int64_t at = bit - first / 8 * 8;
    bytes[at / 8] = static_cast<uint8_t>(bytes[at / 8] | value << (at % 8));
  }
  return bytes;
}

int Width(const LayerRouting& layer, Codec codec) {
  if (codec == Codec::kRaw) return layer.num_experts <= 256 ? 8 : 16;
  int bits = 1;
  while ((1 << bits) < layer.num_experts) ++bits;
  return bits;
}

Block SlowBlock(const Geometry& geometry, const RandomRoutes& routes, RowRange rows, Codec codec) {
  std::vector<uint8_t> bytes;
  Block block{.rows = rows, .codec = codec};
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    const LayerRouting& layer = geometry.layer(i);
    const std::vector<uint8_t> plane =
        SlowCut(routes.Slice(i, {rows}), Width(layer, codec), 0, rows.size() * layer.top_k);
    block.plane_crc32c.push_back(Crc32c(plane));
    bytes.insert(bytes.end(), plane.begin(), plane.end());
  }
  block.bytes = Buffer(bytes.size());
  std::copy(bytes.begin(), bytes.end(), block.bytes.data());
  return block;
}

Block InCodec(const Geometry& geometry, const Block& block, Codec codec) {
  return Merge(geometry, {{block.view(), block.rows}}, codec).value();
}

std::vector<Geometry> Geometries() {
  std::vector<Geometry> out;
  for (const auto& [experts, k] : std::vector<std::pair<int, int>>{{1, 1},
                                                                   {2, 1},
                                                                   {3, 2},
                                                                   {8, 2},
                                                                   {32, 4},
                                                                   {64, 6},
                                                                   {127, 8},
                                                                   {128, 8},
                                                                   {129, 3},
                                                                   {255, 8},
                                                                   {256, 8},
                                                                   {257, 5},
                                                                   {384, 8},
                                                                   {512, 22},
                                                                   {768, 12},
                                                                   {4096, 7},
                                                                   {32768, 3},
                                                                   {65535, 2}}) {
    out.push_back(Geometry::Uniform(3, experts, k));
  }
  out.push_back(*Geometry::Create(
      {.num_layers = 9, .moe_layer_ids = {1, 4, 5, 8}, .num_experts = {60, 300, 256, 5}, .top_k = {3, 6, 1, 4}}));
  return out;
}

absl::Span<const uint8_t> Bytes(const Block& block) { return block.bytes.span(); }

void CheckEncodingCutsAndDecoding() {
  std::mt19937_64 random(1);
  for (const Geometry& geometry : Geometries()) {
    SCOPED_TRACE(geometry.DebugString());
    const RandomRoutes routes = MakeRandomRoutes(geometry, 100, 7);
    const RowRange rows{0, 100};
    const Block raw = SlowBlock(geometry, routes, rows, Codec::kRaw);
    for (const Codec codec : {Codec::kRaw, Codec::kPacked}) {
      const Block block = SlowBlock(geometry, routes, rows, codec);
      ASSERT_EQ(block.bytes.size(), static_cast<size_t>(geometry.block_bytes(100, codec)));
      EXPECT_OK(CheckShape(geometry, block.view(), 256));
      EXPECT_OK(CheckCrc(geometry, block.view()));
      EXPECT_OK(CheckIds(geometry, block.view()));
      ASSERT_EQ(FirstDifference(Bytes(InCodec(geometry, block, Codec::kRaw)), Bytes(raw)), "");
      const Block packed = InCodec(geometry, raw, codec);
      if (packed.codec == codec) {
        ASSERT_EQ(FirstDifference(Bytes(packed), Bytes(block)), "");
        EXPECT_EQ(packed.plane_crc32c, block.plane_crc32c);
      }
      for (int round = 0; round < 20; ++round) {
        const auto begin = static_cast<int64_t>(random() % 100);
        const RowRange cut{begin, begin + 1 + static_cast<int64_t>(random() % (100 - begin))};
        const auto i = static_cast<int32_t>(random() % geometry.num_moe_layers());
        const LayerRouting& layer = geometry.layer(i);
        std::vector<uint8_t> bytes(geometry.cut_bytes(i, cut.begin, cut.size(), codec), 0xEE);
        ASSERT_OK_AND_ASSIGN(const uint32_t crc, CutPlane(geometry, block.view(), i, cut, absl::MakeSpan(bytes)));
        const std::vector<uint8_t> slow =
            SlowCut(routes.layers[i], Width(layer, codec), cut.begin * layer.top_k, cut.end * layer.top_k);
        ASSERT_EQ(FirstDifference(bytes, slow), "") << "layer " << i << ", rows " << ToString(cut);
        EXPECT_EQ(crc, Crc32c(bytes));
        std::vector<uint8_t> ids(cut.size() * layer.top_k * layer.id_bytes());
        DecodeCut(geometry, i, codec, geometry.cut_bit_offset(i, cut.begin, codec), cut.size(), bytes,
                  absl::MakeSpan(ids));
        const std::vector<uint8_t> slow_ids =
            SlowCut(routes.Slice(i, {cut}), 8 * layer.id_bytes(), 0, cut.size() * layer.top_k);
        ASSERT_EQ(FirstDifference(ids, slow_ids), "") << "layer " << i << ", rows " << ToString(cut);
      }
    }
  }
}

TEST(BlockTest, EncodingCutsAndDecodingFollowTheFormat) { testing::ForEachSimdTarget(CheckEncodingCutsAndDecoding); }

TEST(BlockTest, AnySplitMergesToTheSameBytes) {
  std::mt19937_64 random(2);
  for (const Geometry& geometry : Geometries()) {
    SCOPED_TRACE(geometry.DebugString());
    const RandomRoutes routes = MakeRandomRoutes(geometry, 120, 8);
    for (const Codec codec : {Codec::kRaw, Codec::kPacked}) {
      std::vector<Block> blocks;
      std::vector<BlockRows> parts;
      for (int64_t begin = 20; begin < 120;) {
        const int64_t end = std::min<int64_t>(120, begin + 1 + static_cast<int64_t>(random() % 40));
        // The rows of a part are often only the middle of a larger block, which may have either codec.
        const RowRange whole{begin - static_cast<int64_t>(random() % 5),
                             end + static_cast<int64_t>(random() % (121 - end))};
        blocks.push_back(SlowBlock(geometry, routes, whole, random() % 2 == 0 ? Codec::kRaw : Codec::kPacked));
        parts.push_back({{}, {begin, end}});
        begin = end;
      }
      for (size_t i = 0; i < parts.size(); ++i) parts[i].block = blocks[i].view();
      ASSERT_OK_AND_ASSIGN(const Block merged, Merge(geometry, parts, codec));
      EXPECT_EQ(merged.rows, (RowRange{20, 120}));
      const Block expected = SlowBlock(geometry, routes, {20, 120}, merged.codec);
      ASSERT_EQ(FirstDifference(Bytes(merged), Bytes(expected)), "");
      EXPECT_EQ(merged.plane_crc32c, expected.plane_crc32c);
      for (const BlockRows& part : parts) {
        EXPECT_EQ(CountDifferingRows(geometry, {expected.view(), part.rows}, part).rows, 0);
      }
    }
  }
}

TEST(BlockTest, PackedThatDoesNotShrinkStaysRaw) {
  const Geometry geometry = Geometry::Uniform(2, 256, 4);
  const Block raw = SlowBlock(geometry, MakeRandomRoutes(geometry, 10, 1), {0, 10}, Codec::kRaw);
  EXPECT_EQ(InCodec(geometry, raw, Codec::kPacked).codec, Codec::kRaw);
}

TEST(BlockTest, DamageIsFoundAndNamed) {
  const Geometry geometry = Geometry::Uniform(4, 60, 4);
  for (const Codec codec : {Codec::kRaw, Codec::kPacked}) {
    Block block = SlowBlock(geometry, MakeRandomRoutes(geometry, 50, 1), {0, 50}, codec);
    block.bytes.data()[geometry.plane_offset(2, 50, codec) + 7] ^= 1;
    const absl::Status status = CheckCrc(geometry, block.view());
    EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, Reason::kChecksum));
    EXPECT_EQ(GetErrorDetail(status)->layer, 2);
    std::vector<uint8_t> out(geometry.cut_bytes(2, 3, 5, codec), 0xAB);
    const auto crc = CutPlane(geometry, block.view(), 2, {3, 8}, absl::MakeSpan(out));
    EXPECT_THAT(crc, Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
    EXPECT_THAT(out, ::testing::Each(0xAB));
    EXPECT_EQ(Merge(geometry, {{block.view(), {0, 50}}}, codec).status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST(BlockTest, ShapesAndIdsThatCannotBe) {
  const Geometry geometry = Geometry::Uniform(2, 60, 4);
  const RandomRoutes routes = MakeRandomRoutes(geometry, 60, 1);
  const Block good = SlowBlock(geometry, routes, {0, 50}, Codec::kRaw);
  BlockView view = good.view();
  EXPECT_THAT(CheckShape(geometry, view, 32), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  view.bytes.remove_suffix(1);
  EXPECT_THAT(CheckShape(geometry, view, 256), Fails(absl::StatusCode::kInvalidArgument, Reason::kLength));
  view = good.view();
  view.plane_crc32c.remove_suffix(1);
  EXPECT_THAT(CheckShape(geometry, view, 256), Fails(absl::StatusCode::kInvalidArgument, Reason::kLength));

  RandomRoutes bad = routes;
  bad.layers[1][30 * 4 + 2] = 61;
  const absl::Status status = CheckIds(geometry, SlowBlock(geometry, bad, {0, 50}, Codec::kPacked).view());
  EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, Reason::kIdRange));
  EXPECT_EQ(GetErrorDetail(status)->row, 30);
  EXPECT_EQ(GetErrorDetail(status)->layer, 1);
  bad = routes;
  bad.layers[0][20 * 4] = bad.layers[0][20 * 4 + 3];
  const Block twice = SlowBlock(geometry, bad, {0, 50}, Codec::kRaw);
  const RowDifferences differences = CountDifferingRows(geometry, {good.view(), {10, 40}}, {twice.view(), {10, 40}});
  EXPECT_EQ(differences.rows, 1);
  EXPECT_EQ(differences.first_row, 20);

  // A row of 3 ids with 3 bits each takes 9 bits, so the upper 7 bits of its second byte are padding.
  const Geometry narrow = Geometry::Uniform(1, 8, 3);
  Block padded = SlowBlock(narrow, MakeRandomRoutes(narrow, 1, 1), {0, 1}, Codec::kPacked);
  padded.bytes.data()[1] |= 0x80;
  EXPECT_THAT(CheckIds(narrow, padded.view()), Fails(absl::StatusCode::kInvalidArgument, Reason::kEncoding));
}

TEST(BlockTest, ExampleOfFormatMd) {
  const Geometry geometry = Geometry::Uniform(1, 6, 2);
  const RandomRoutes routes{.rows = 3, .layers = {{5, 1, 0, 3, 4, 2}}};
  const Block raw = SlowBlock(geometry, routes, {0, 3}, Codec::kRaw);
  const Block packed = InCodec(geometry, raw, Codec::kPacked);
  EXPECT_THAT(Bytes(packed), ::testing::ElementsAre(0x0d, 0x46, 0x01));
  std::vector<uint8_t> cut(geometry.cut_bytes(0, 1, 2, Codec::kPacked));
  ASSERT_OK(CutPlane(geometry, packed.view(), 0, {1, 3}, absl::MakeSpan(cut)));
  EXPECT_THAT(cut, ::testing::ElementsAre(0x00, 0x46, 0x01));
  EXPECT_EQ(geometry.cut_bit_offset(0, 1, Codec::kPacked), 6);
}

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
