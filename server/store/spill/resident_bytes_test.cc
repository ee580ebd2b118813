#include "server/store/spill/resident_bytes.h"

#include <gmock/gmock.h>

#include "server/store/conformance/conformance.h"
#include "server/store/sample/stored_block.h"

namespace routing_replay::server {
namespace {

using ::testing::ElementsAreArray;
using testing::TestGeometry;

Block BlockOf(RowRange rows, Codec codec) {
  Block block{.rows = rows, .codec = codec, .bytes = Buffer(TestGeometry().block_bytes(rows.size(), codec))};
  for (size_t i = 0; i < block.bytes.size(); ++i) block.bytes.data()[i] = static_cast<uint8_t>(i * 7);
  for (int32_t i = 0; i < TestGeometry().num_moe_layers(); ++i) block.plane_crc32c.push_back(0x01020304u * (i + 1));
  return block;
}

TEST(ResidentBytesTest, BlocksOfAnySizeAreShownAsTheyWere) {
  EXPECT_TRUE(ResidentBytes().empty());
  for (const Codec codec : {Codec::kRaw, Codec::kPacked}) {
    for (const int64_t rows : {0, 1, 3, 16, 300, 2000}) {
      const Block block = BlockOf({40, 40 + rows}, codec);
      ResidentBytes kept(BlockOf({40, 40 + rows}, codec));
      ASSERT_FALSE(kept.empty());
      const ResidentBytes holder = kept;
      const BlockView view = kept.view(TestGeometry(), block.rows, codec);
      kept = ResidentBytes();
      EXPECT_TRUE(kept.empty());
      EXPECT_EQ(view.rows, block.rows);
      EXPECT_EQ(view.codec, codec);
      EXPECT_THAT(view.plane_crc32c, ElementsAreArray(block.plane_crc32c));
      EXPECT_THAT(view.bytes, ElementsAreArray(block.bytes.span()));
    }
  }
}

TEST(ResidentBytesTest, ALargeBlockIsNotCopied) {
  Block block = BlockOf({0, 2000}, Codec::kRaw);
  ASSERT_GT(block.bytes.size(), MemoryHome::kSmallBytes);
  const uint8_t* bytes = block.bytes.data();
  const ResidentBytes kept(std::move(block));
  EXPECT_EQ(kept.view(TestGeometry(), {0, 2000}, Codec::kRaw).bytes.data(), bytes);
}

}  // namespace
}  // namespace routing_replay::server
