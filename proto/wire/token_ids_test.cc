#include "proto/wire/token_ids.h"

#include <algorithm>
#include <cstring>

#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

template <typename T>
absl::StatusOr<std::vector<uint32_t>> Ids(const char* dtype, const std::vector<T>& ids, int axes = 1) {
  // The ids begin at the second byte of the memory, because a caller's array may have any alignment.
  std::vector<uint8_t> bytes(1 + ids.size() * sizeof(T));
  const auto* data = reinterpret_cast<const uint8_t*>(ids.data());
  std::copy(data, data + ids.size() * sizeof(T), bytes.begin() + 1);
  auto narrow = TokenIds({.dtype = dtype, .axes = axes, .sample = "a", .bytes = absl::MakeConstSpan(bytes).subspan(1)});
  if (!narrow.ok()) return narrow.status();
  std::vector<uint32_t> out(narrow->size() / sizeof(uint32_t));
  memcpy(out.data(), narrow->data(), narrow->size());
  return out;
}

TEST(TokenIdsTest, EveryIntegerDtype) {
  using V = std::vector<uint32_t>;
  EXPECT_EQ(*Ids<uint8_t>("uint8", {0, 255}), (V{0, 255}));
  EXPECT_EQ(*Ids<int8_t>("int8", {0, 127}), (V{0, 127}));
  EXPECT_EQ(*Ids<uint16_t>("uint16", {65535}), (V{65535}));
  EXPECT_EQ(*Ids<int16_t>("int16", {32767}), (V{32767}));
  EXPECT_EQ(*Ids<uint32_t>("uint32", {7, UINT32_MAX}), (V{7, UINT32_MAX}));
  EXPECT_EQ(*Ids<int32_t>("int32", {INT32_MAX}), (V{INT32_MAX}));
  EXPECT_EQ(*Ids<uint64_t>("uint64", {UINT32_MAX}), (V{UINT32_MAX}));
  EXPECT_EQ(*Ids<int64_t>("int64", {1, UINT32_MAX}), (V{1, UINT32_MAX}));
}

TEST(TokenIdsTest, OthersAreRejected) {
  using testing::Fails;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(Ids<int64_t>("int64", {1, int64_t{1} << 32}).status(), Fails(kInvalid, Reason::kField));
  EXPECT_THAT(Ids<uint64_t>("uint64", {UINT64_MAX}).status(), Fails(kInvalid, Reason::kField));
  for (const char* dtype : {"int8", "int16", "int32", "int64"}) {
    EXPECT_THAT(Ids<int64_t>(dtype, {-1}).status(), Fails(kInvalid, Reason::kField)) << dtype;
  }
  EXPECT_THAT(Ids<int64_t>("int64", {}).status(), Fails(kInvalid, Reason::kLength));
  EXPECT_THAT(Ids<uint8_t>("int32", {1, 2, 3}).status(), Fails(kInvalid, Reason::kLength));
  EXPECT_THAT(Ids<int64_t>("int64", {1}, 2).status(), Fails(kInvalid, Reason::kShape));
  EXPECT_THAT(Ids<int64_t>("int64", {1}, 0).status(), Fails(kInvalid, Reason::kShape));
  for (const char* dtype : {"float64", "bool", "object", "str32", ""}) {
    EXPECT_THAT(Ids<int64_t>(dtype, {1}).status(), Fails(kInvalid, Reason::kDType)) << dtype;
  }
  const auto detail = GetErrorDetail(Ids<int64_t>("int64", {}).status());
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->field, "tokens");
  EXPECT_EQ(detail->sample, "a");
}

}  // namespace
}  // namespace routing_replay
