// Tests with the vectors of RFC 3720 (appendix B.4) and with a reference that works bit by bit.
#include "routing_replay/wire/checksum.h"

#include <random>

#include <gtest/gtest.h>

namespace routing_replay {
namespace {

uint32_t SlowCrc32c(absl::Span<const uint8_t> bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0x82F63B78 : crc >> 1;
  }
  return ~crc;
}

std::vector<uint8_t> RandomBytes(std::mt19937_64& random, size_t size) {
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

TEST(ChecksumTest, VectorsOfTheRfc) {
  std::vector<uint8_t> ascending(32), descending(32);
  for (size_t i = 0; i < 32; ++i) ascending[i] = static_cast<uint8_t>(i), descending[i] = static_cast<uint8_t>(31 - i);
  EXPECT_EQ(Crc32c(std::vector<uint8_t>(32, 0)), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::vector<uint8_t>(32, 0xFF)), 0x62A8AB43u);
  EXPECT_EQ(Crc32c(ascending), 0x46DD794Eu);
  EXPECT_EQ(Crc32c(descending), 0x113FDB5Cu);
  // An iSCSI read command.
  std::vector<uint8_t> command(48, 0);
  command[0] = 0x01, command[1] = 0xC0, command[16] = 0x14, command[22] = 0x04, command[27] = 0x14;
  command[31] = 0x18, command[32] = 0x28, command[40] = 0x02;
  EXPECT_EQ(Crc32c(command), 0xD9963A56u);
}

TEST(ChecksumTest, OfNothingIsZero) {
  EXPECT_EQ(Crc32c({}), 0u);
  EXPECT_EQ(Crc32cExtend(0x12345678, {}), 0x12345678u);
}

TEST(ChecksumTest, EveryLengthAndAlignment) {
  std::mt19937_64 random(1);
  for (size_t size = 0; size < 600; ++size) {
    const std::vector<uint8_t> bytes = RandomBytes(random, size);
    const absl::Span<const uint8_t> part = absl::MakeConstSpan(bytes).subspan(std::min(size, size % 9));
    ASSERT_EQ(Crc32c(part), SlowCrc32c(part)) << size;
  }
  const std::vector<uint8_t> large = RandomBytes(random, 1 << 18);
  EXPECT_EQ(Crc32c(large), SlowCrc32c(large));
}

TEST(ChecksumTest, ExtendsInAnyParts) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 300; ++round) {
    const std::vector<uint8_t> bytes = RandomBytes(random, random() % 2000);
    uint32_t crc = 0, check = 0;
    absl::Span<const uint8_t> rest(bytes);
    while (!rest.empty()) {
      const size_t size = std::min<size_t>(rest.size(), random() % 500);
      crc = Crc32cExtend(crc, rest.subspan(0, size));
      check = TokenCheckExtend(check, rest.subspan(0, size));
      rest.remove_prefix(size);
    }
    ASSERT_EQ(crc, SlowCrc32c(bytes));
    ASSERT_EQ(check, crc);
  }
}

}  // namespace
}  // namespace routing_replay
