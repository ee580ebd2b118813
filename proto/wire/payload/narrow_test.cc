// Compares narrowing with a conversion of single elements, on every instruction set of this machine.
#include "proto/wire/payload/narrow.h"

#include <cstring>
#include <random>

#include "absl/types/span.h"
#include "proto/wire/simd_targets_test_util.h"

namespace routing_replay {
namespace {

constexpr DType kDTypes[] = {DType::kU8, DType::kI8, DType::kU16, DType::kI16, DType::kI32, DType::kI64};
constexpr uint8_t kUntouched = 0xA5;

int Bytes(DType dtype) {
  switch (dtype) {
    case DType::kU8:
    case DType::kI8:
      return 1;
    case DType::kU16:
    case DType::kI16:
      return 2;
    case DType::kI32:
      return 4;
    default:
      return 8;
  }
}

bool HasSign(DType dtype) { return dtype != DType::kU8 && dtype != DType::kU16; }

int64_t SlowElement(DType dtype, const std::vector<uint8_t>& bytes, size_t at) {
  uint64_t value = 0;
  for (int i = 0; i < Bytes(dtype); ++i) value |= static_cast<uint64_t>(bytes[at + i]) << (8 * i);
  const int unused = 64 - 8 * Bytes(dtype);
  return HasSign(dtype) ? static_cast<int64_t>(value << unused) >> unused : static_cast<int64_t>(value);
}

// Returns `offset` bytes and then `rows` rows of elements, with `gap` other bytes between two rows. The allocation ends
// with the last element, so that ASan detects a read past it.
std::vector<uint8_t> Source(DType dtype, const std::vector<int64_t>& values, size_t rows, size_t gap, size_t offset) {
  std::vector<uint8_t> bytes(offset, 0xFF);
  for (size_t i = 0; i < values.size(); ++i) {
    for (int b = 0; b < Bytes(dtype); ++b) {
      bytes.push_back(static_cast<uint8_t>(static_cast<uint64_t>(values[i]) >> (8 * b)));
    }
    if ((i + 1) % (values.size() / rows) == 0 && i + 1 < values.size()) bytes.insert(bytes.end(), gap, 0xFF);
  }
  return bytes;
}

void CheckRows(DType dtype, const std::vector<int64_t>& values, int64_t rows, int64_t gap, size_t offset,
               int id_bytes) {
  const std::vector<uint8_t> from = Source(dtype, values, rows, gap, offset);
  const int64_t count = static_cast<int64_t>(values.size()) / rows, row_bytes = count * Bytes(dtype);
  const int32_t top = id_bytes == 1 ? 256 : 65535;
  // Ids are written from index 1 on, so to an odd address. The bytes before and after them must not change.
  std::vector<uint8_t> to(1 + rows * count * id_bytes + 1, kUntouched);
  const bool has_room = NarrowIds(dtype, from.data() + offset, row_bytes + gap, rows, count, id_bytes, to.data() + 1);
  EXPECT_EQ(to.front(), kUntouched);
  EXPECT_EQ(to.back(), kUntouched);
  const int64_t limit = NarrowLimit(dtype, top);
  bool all_ids = true;
  for (int64_t i = 0; i < rows * count; ++i) {
    const size_t at = offset + i / count * (row_bytes + gap) + i % count * Bytes(dtype);
    const int64_t value = SlowElement(dtype, from, at);
    ASSERT_EQ(ElementAt(dtype, from.data() + at, 0), value);
    const int64_t narrow = to[1 + i * id_bytes] | (id_bytes == 2 ? to[2 + i * id_bytes] << 8 : 0);
    all_ids = all_ids && value >= 0 && value < limit;
    if (has_room && value >= 0 && value < limit) {
      ASSERT_EQ(narrow, value) << "element " << i;
    } else if (has_room) {
      ASSERT_GE(narrow, limit) << "element " << i;
    }
  }
  EXPECT_TRUE(has_room || !all_ids);
}

// Checks the values as one row, and, if their number is even, as two rows with other bytes between them.
void Check(DType dtype, const std::vector<int64_t>& values, size_t offset, int id_bytes) {
  CheckRows(dtype, values, 1, 0, offset, id_bytes);
  if (values.size() % 2 == 0) CheckRows(dtype, values, 2, values.size() % 5, offset, id_bytes);
}

TEST(NarrowTest, BytesOfATypeAndOfNone) {
  for (const DType dtype : kDTypes) EXPECT_EQ(DTypeBytes(dtype), Bytes(dtype));
  EXPECT_EQ(DTypeBytes(DType::kUnspecified), 0);
  EXPECT_EQ(DTypeBytes(static_cast<DType>(7)), 0);
}

TEST(NarrowTest, IdsOfEveryLengthAndAlignment) {
  testing::ForEachSimdTarget([] {
    std::mt19937_64 random(4);
    for (const DType dtype : kDTypes) {
      for (const int id_bytes : {1, 2}) {
        for (int64_t count = 0; count <= 200; ++count) {
          std::vector<int64_t> values(count);
          for (int64_t& value : values) value = static_cast<int64_t>(random() % (id_bytes == 1 ? 128 : 32768));
          Check(dtype, values, count % 9, id_bytes);
        }
      }
    }
  });
}

// One invalid element at each position of a row that ends in the middle of a vector.
TEST(NarrowTest, OneBadElementIsSeenAnywhere) {
  const int64_t kBad[] = {-1,
                          -2,
                          -128,
                          -129,
                          -32768,
                          127,
                          128,
                          255,
                          256,
                          257,
                          32767,
                          32768,
                          65535,
                          65536,
                          65537,
                          1 << 24,
                          1 << 30,
                          INT32_MAX,
                          INT32_MIN,
                          INT64_MAX,
                          INT64_MIN,
                          int64_t{1} << 32,
                          (int64_t{1} << 32) + 5};
  testing::ForEachSimdTarget([&] {
    for (const DType dtype : kDTypes) {
      for (const int id_bytes : {1, 2}) {
        for (const int64_t bad : kBad) {
          for (size_t place = 0; place < 75; ++place) {
            std::vector<int64_t> values(75, 3);
            values[place] = bad;
            Check(dtype, values, place % 8, id_bytes);
          }
        }
      }
    }
  });
}

TEST(NarrowTest, AnyBytes) {
  testing::ForEachSimdTarget([] {
    std::mt19937_64 random(5);
    for (int round = 0; round < 2000; ++round) {
      std::vector<int64_t> values(random() % 140);
      for (int64_t& value : values) value = static_cast<int64_t>(random()) >> random() % 64;
      Check(kDTypes[random() % 6], values, random() % 9, 1 + static_cast<int>(random() % 2));
    }
  });
}

}  // namespace
}  // namespace routing_replay
