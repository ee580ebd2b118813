// Compares sizes with a count of single bits, and tests every limit.
#include "routing_replay/wire/geometry.h"

#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;

int SlowIdBits(int experts, Codec codec) {
  if (codec == Codec::kRaw) return experts <= 256 ? 8 : 16;
  int bits = 1;
  while ((1 << bits) < experts) ++bits;
  return bits;
}

int64_t SlowBytes(int64_t bits) {
  int64_t bytes = 0;
  for (; bits > 0; bits -= 8) ++bytes;
  return bytes;
}

Geometry::Options RandomOptions(std::mt19937_64& random) {
  static constexpr int kExperts[] = {1, 2, 3, 8, 60, 64, 127, 128, 129, 255, 256, 257, 512, 513, 896, 65535};
  Geometry::Options o{.num_layers = 1 + static_cast<int32_t>(random() % 20)};
  for (int32_t i = 0; i < o.num_layers; ++i) {
    if (random() % 3 != 0) o.moe_layer_ids.push_back(i);
  }
  if (o.moe_layer_ids.empty()) o.moe_layer_ids.push_back(o.num_layers - 1);
  const size_t layers = o.moe_layer_ids.size();
  const size_t count = random() % 2 == 0 ? 1 : layers;
  for (size_t i = 0; i < count; ++i) {
    o.num_experts.push_back(kExperts[random() % std::size(kExperts)]);
    o.top_k.push_back(1 + static_cast<int32_t>(random() % std::min(o.num_experts[i], kMaxTopK)));
  }
  return o;
}

TEST(GeometryTest, ArraysHaveTheLargestKAndWidth) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 100; ++round) {
    ASSERT_OK_AND_ASSIGN(const Geometry g, Geometry::Create(RandomOptions(random)));
    SCOPED_TRACE(g.DebugString());
    int32_t top_k = 0, id_bytes = 0;
    for (const LayerRouting& layer : g.layers()) {
      top_k = std::max(top_k, layer.top_k);
      id_bytes = std::max(id_bytes, layer.id_bytes());
    }
    EXPECT_EQ(g.max_top_k(), top_k);
    EXPECT_EQ(g.max_id_bytes(), id_bytes);
    const int64_t per_row = int64_t{g.num_moe_layers()} * top_k, most = std::numeric_limits<int64_t>::max();
    const auto rows = static_cast<int64_t>(random() % 300);
    EXPECT_EQ(g.array_ids(rows), rows * per_row);
    EXPECT_EQ(g.array_ids(most / per_row), most / per_row * per_row);
    if (per_row > 1) {
      EXPECT_EQ(g.array_ids(most / per_row + 1), std::nullopt);
    }
    EXPECT_EQ(g.array_ids(-1), std::nullopt);
    EXPECT_EQ(g.array_ids(std::numeric_limits<int64_t>::min()), std::nullopt);
  }
}

TEST(GeometryTest, SizesAreCountsOfBits) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const Geometry::Options o = RandomOptions(random);
    ASSERT_OK_AND_ASSIGN(const Geometry g, Geometry::Create(o));
    SCOPED_TRACE(g.DebugString());
    ASSERT_EQ(g.num_moe_layers(), static_cast<int32_t>(o.moe_layer_ids.size()));
    const auto rows = static_cast<int64_t>(random() % 300);
    const auto row = static_cast<int64_t>(random() % 300);
    for (const Codec codec : {Codec::kRaw, Codec::kPacked}) {
      int64_t offset = 0, ids = 0, raw_row = 0;
      for (int32_t i = 0; i < g.num_moe_layers(); ++i) {
        const LayerRouting& layer = g.layer(i);
        EXPECT_EQ(layer.num_experts, o.num_experts[o.num_experts.size() == 1 ? 0 : i]);
        EXPECT_EQ(layer.top_k, o.top_k[o.top_k.size() == 1 ? 0 : i]);
        const int bits = SlowIdBits(layer.num_experts, codec);
        ids += layer.top_k;
        raw_row += layer.top_k * SlowIdBits(layer.num_experts, Codec::kRaw) / 8;
        EXPECT_EQ(g.id_bits(i, codec), bits);
        EXPECT_EQ(g.row_bits(i, codec), bits * layer.top_k);
        EXPECT_EQ(g.plane_offset(i, rows, codec), offset);
        EXPECT_EQ(g.plane_bytes(i, rows, codec), SlowBytes(rows * layer.top_k * bits));
        offset += SlowBytes(rows * layer.top_k * bits);
        // The length of a cut is the number of bytes that hold any of its bits.
        int64_t touched = 0, last_byte = -1;
        for (int64_t bit = row * layer.top_k * bits; bit < (row + rows) * layer.top_k * bits; ++bit) {
          touched += bit / 8 != last_byte;
          last_byte = bit / 8;
        }
        const int32_t bit_offset = static_cast<int32_t>(row * layer.top_k * bits % 8);
        EXPECT_EQ(g.cut_bit_offset(i, row, codec), bit_offset);
        if (rows > 0) {
          EXPECT_EQ(g.cut_bytes(i, row, rows, codec), touched);
          EXPECT_EQ(g.cut_bytes_at(i, bit_offset, rows, codec), touched);
        }
      }
      EXPECT_EQ(g.plane_offset(g.num_moe_layers(), rows, codec), offset);
      EXPECT_EQ(g.block_bytes(rows, codec), offset);
      EXPECT_EQ(g.ids_per_row(), ids);
      EXPECT_EQ(g.raw_row_bytes(), raw_row);
    }
    const bool saves =
        g.block_bytes(kDefaultBlockRows, Codec::kPacked) <=
        g.block_bytes(kDefaultBlockRows, Codec::kRaw) - SlowBytes(2 * g.block_bytes(kDefaultBlockRows, Codec::kRaw));
    EXPECT_EQ(g.default_codec(), saves ? Codec::kPacked : Codec::kRaw);
  }
}

TEST(GeometryTest, FindsLayersByGlobalId) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 100; ++round) {
    const Geometry::Options o = RandomOptions(random);
    ASSERT_OK_AND_ASSIGN(const Geometry g, Geometry::Create(o));
    for (int32_t id = -2; id < o.num_layers + 2; ++id) {
      const auto at = std::find(o.moe_layer_ids.begin(), o.moe_layer_ids.end(), id);
      const auto ordinal = g.FindOrdinal(id);
      ASSERT_EQ(ordinal.has_value(), at != o.moe_layer_ids.end());
      if (ordinal) {
        EXPECT_EQ(*ordinal, at - o.moe_layer_ids.begin());
        EXPECT_EQ(g.layer(*ordinal).layer_id, id);
      }
    }
  }
}

TEST(GeometryTest, OneValueForAllEqualsOnePerLayer) {
  ASSERT_OK_AND_ASSIGN(
      const Geometry one,
      Geometry::Create({.num_layers = 5, .moe_layer_ids = {1, 2, 4}, .num_experts = {64}, .top_k = {6}}));
  ASSERT_OK_AND_ASSIGN(
      const Geometry each,
      Geometry::Create({.num_layers = 5, .moe_layer_ids = {1, 2, 4}, .num_experts = {64, 64, 64}, .top_k = {6, 6, 6}}));
  EXPECT_EQ(one, each);
  EXPECT_EQ(one.fingerprint(), each.fingerprint());
  EXPECT_TRUE(each.uniform());
}

TEST(GeometryTest, AnyDifferenceChangesTheFingerprint) {
  const Geometry::Options base{
      .num_layers = 5, .moe_layer_ids = {1, 2, 4}, .num_experts = {64, 64, 64}, .top_k = {6, 6, 6}};
  std::vector<Geometry::Options> all(7, base);
  all[1].num_layers = 6;
  all[2].moe_layer_ids = {0, 2, 4};
  all[3].moe_layer_ids = {1, 2}, all[3].num_experts = {64}, all[3].top_k = {6};
  all[4].num_experts = {64, 65, 64};
  all[5].top_k = {6, 6, 5};
  all[6].top_k = {5, 6, 6};
  std::set<uint64_t> fingerprints;
  for (const Geometry::Options& o : all) {
    ASSERT_OK_AND_ASSIGN(const Geometry g, Geometry::Create(o));
    fingerprints.insert(g.fingerprint());
    EXPECT_EQ(g == *Geometry::Create(base), fingerprints.size() == 1);
  }
  EXPECT_EQ(fingerprints.size(), all.size());
}

struct BadCase {
  const char* field;
  std::optional<int32_t> layer;
  Geometry::Options options;
};

TEST(GeometryTest, RejectionsNameFieldAndLayer) {
  std::vector<int32_t> too_many(kMaxMoeLayers + 1);
  std::iota(too_many.begin(), too_many.end(), 0);
  const std::vector<BadCase> cases = {
      {"num_layers", {}, {0, {0}, {8}, {2}}},
      {"num_layers", {}, {-1, {0}, {8}, {2}}},
      {"num_layers", {}, {kMaxLayers + 1, {0}, {8}, {2}}},
      {"moe_layer_ids", {}, {4, {}, {8}, {2}}},
      {"moe_layer_ids", {}, {kMaxLayers, too_many, {8}, {2}}},
      {"moe_layer_ids", -1, {4, {-1, 2}, {8}, {2}}},
      {"moe_layer_ids", 4, {4, {1, 4}, {8}, {2}}},
      {"moe_layer_ids", 1, {4, {1, 1}, {8}, {2}}},
      {"moe_layer_ids", 1, {4, {2, 1}, {8}, {2}}},
      {"num_experts", {}, {4, {1, 2, 3}, {}, {2}}},
      {"num_experts", {}, {4, {1, 2, 3}, {8, 8}, {2}}},
      {"num_experts", {}, {4, {1}, {8, 8}, {2}}},
      {"num_experts", 1, {4, {1, 2}, {0}, {2}}},
      {"num_experts", 2, {4, {1, 2}, {8, -5}, {2}}},
      {"num_experts", 2, {4, {1, 2}, {8, kMaxExperts + 1}, {2}}},
      {"top_k", {}, {4, {1, 2, 3}, {8}, {}}},
      {"top_k", {}, {4, {1, 2, 3}, {8}, {2, 2}}},
      {"top_k", 1, {4, {1, 2}, {8}, {0}}},
      {"top_k", 2, {4, {1, 2}, {8}, {2, -1}}},
      {"top_k", 1, {4, {1, 2}, {8}, {9}}},
      {"top_k", 2, {4, {1, 2}, {100}, {64, kMaxTopK + 1}}},
  };
  for (const BadCase& bad : cases) {
    const absl::Status status = Geometry::Create(bad.options).status();
    EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
    const ErrorDetail detail = GetErrorDetail(status).value_or(ErrorDetail{});
    EXPECT_EQ(detail.field, absl::StrCat("geometry.", bad.field));
    EXPECT_EQ(detail.layer, bad.layer) << status;
  }
}

TEST(GeometryTest, TheLimitsThemselvesAreAllowed) {
  Geometry::Options o{.num_layers = kMaxLayers, .num_experts = {kMaxExperts}, .top_k = {kMaxTopK}};
  for (int32_t i = 0; i < kMaxMoeLayers; ++i) o.moe_layer_ids.push_back(kMaxLayers - kMaxMoeLayers + i);
  ASSERT_OK_AND_ASSIGN(const Geometry g, Geometry::Create(o));
  EXPECT_EQ(g.raw_row_bytes(), int64_t{kMaxMoeLayers} * kMaxTopK * 2);
  // Not even the size of the largest possible sample overflows.
  EXPECT_EQ(g.block_bytes(kMaxRows, Codec::kRaw), kMaxRows * g.raw_row_bytes());
  EXPECT_EQ(g.id_bits(0, Codec::kPacked), 16);
}

TEST(GeometryTest, Texts) {
  EXPECT_EQ(Geometry::Uniform(48, 128, 8).DebugString(), "48 MoE layers of 48, E 128, K 8");
  EXPECT_STREQ(CodecName(Codec::kRaw), "RAW");
  EXPECT_STREQ(CodecName(Codec::kPacked), "PACKED");
}

}  // namespace
}  // namespace routing_replay
