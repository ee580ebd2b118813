#include "server/store/token_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "routing_replay/wire/checksum.h"

namespace routing_replay::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kWindow = 32;

// A trajectory of which appends are slices.
class Trajectory {
 public:
  explicit Trajectory(uint32_t seed, int64_t rows = 200) {
    std::mt19937 random(seed);
    for (int64_t i = 0; i < rows * 4; ++i) bytes_.push_back(static_cast<uint8_t>(random()));
  }
  uint32_t CheckAt(int64_t rows) const { return Crc32c(absl::MakeSpan(bytes_).first(rows * 4)); }
  AppendTokens Slice(int64_t begin, int64_t end, bool with_start = false) const {
    AppendTokens tokens{.rows = {begin, end}, .ids = absl::MakeSpan(bytes_).subspan(begin * 4, (end - begin) * 4)};
    if (with_start) tokens.start = CheckAt(begin);
    return tokens;
  }
  void Change(int64_t row) { bytes_[row * 4] ^= 1; }

 private:
  std::vector<uint8_t> bytes_;
};

TokenComparison Take(TokenChecks& checks, const AppendTokens& tokens) {
  TokenComparison comparison = checks.Compare(tokens);
  checks.Extend(tokens, comparison.check_at_end);
  return comparison;
}

TokenChecks Stored(const Trajectory& trajectory, int64_t rows) {
  TokenChecks checks(kWindow);
  Take(checks, trajectory.Slice(0, rows));
  return checks;
}

TEST(TokenChecksTest, KnowsBoundariesAndTheEndInAnySplit) {
  const Trajectory a(1);
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    TokenChecks checks(kWindow);
    while (checks.rows() < 150) {
      const int64_t end = std::min<int64_t>(150, checks.rows() + 1 + random() % 70);
      Take(checks, a.Slice(checks.rows(), end));
    }
    for (int64_t row = 0; row <= 160; ++row) {
      const bool known = row <= 150 && (row % kWindow == 0 || row == 150);
      EXPECT_EQ(checks.At(row), known ? std::optional(a.CheckAt(row)) : std::nullopt) << row;
    }
  }
}

TEST(TokenChecksTest, AnotherTrajectoryDiffersAtTheFirstCheck) {
  Trajectory b(1);
  const TokenChecks checks = Stored(b, 100);
  b.Change(70);
  EXPECT_EQ(checks.Compare(b.Slice(0, 100)).differs_at, 96);
  EXPECT_EQ(checks.Compare(b.Slice(0, 150)).differs_at, 96);
  EXPECT_EQ(checks.Compare(b.Slice(97, 150, true)).differs_at, 100);
  EXPECT_EQ(checks.Compare(b.Slice(100, 150, true)).differs_at, 100);
  EXPECT_EQ(checks.WindowOf(96), 2);
  EXPECT_EQ(checks.WindowOf(100), 3);
  // This append ends at row 80, before the next stored check (row 96), so its rows from 64 on cannot be compared. They
  // are suspect, because both sides know their tokens.
  const TokenComparison short_one = checks.Compare(b.Slice(0, 80));
  EXPECT_EQ(short_one.differs_at, std::nullopt);
  EXPECT_THAT(short_one.unverified, ElementsAre(RowRange{64, 80}));
  EXPECT_THAT(short_one.suspect, ElementsAre(RowRange{64, 80}));
}

TEST(TokenChecksTest, RowsShiftedByOneDifferWithAStartCheck) {
  const Trajectory a(1);
  const TokenChecks checks = Stored(a, 100);
  AppendTokens shifted = a.Slice(101, 140, true);
  shifted.rows = {100, 139};
  EXPECT_EQ(checks.Compare(shifted).differs_at, 100);
}

TEST(TokenChecksTest, WithoutAStartCheckTheChainStartsAtTheNextStoredOne) {
  const Trajectory a(1);
  TokenChecks checks = Stored(a, 100);
  const TokenComparison comparison = checks.Compare(a.Slice(40, 120));
  EXPECT_EQ(comparison.differs_at, std::nullopt);
  EXPECT_THAT(comparison.unverified, ElementsAre(RowRange{40, 64}));
  EXPECT_EQ(comparison.check_at_end, a.CheckAt(100));
  EXPECT_THAT(checks.Compare(a.Slice(40, 120, true)).unverified, IsEmpty());
  EXPECT_THAT(checks.Compare(a.Slice(64, 120)).unverified, IsEmpty());
}

TEST(TokenChecksTest, RowsWithoutTokensMakeLaterChecksUnknownUntilAStartCheck) {
  const Trajectory a(1);
  TokenChecks checks = Stored(a, 40);
  Take(checks, {.rows = {40, 70}});
  EXPECT_EQ(checks.At(64), std::nullopt);
  EXPECT_EQ(checks.At(70), std::nullopt);
  Take(checks, a.Slice(70, 80));
  EXPECT_EQ(checks.At(80), std::nullopt);
  Take(checks, a.Slice(80, 100, true));
  EXPECT_EQ(checks.At(96), a.CheckAt(96));
  EXPECT_EQ(checks.At(100), a.CheckAt(100));

  // Rows without a check are suspect only if both sides know their tokens.
  const TokenComparison comparison = checks.Compare(a.Slice(0, 90));
  EXPECT_THAT(comparison.unverified, ElementsAre(RowRange{32, 90}));
  EXPECT_THAT(comparison.suspect, ElementsAre(RowRange{32, 40}, RowRange{80, 90}));
  const TokenComparison silent = checks.Compare({.rows = {0, 90}});
  EXPECT_THAT(silent.unverified, ElementsAre(RowRange{0, 90}));
  EXPECT_THAT(silent.suspect, IsEmpty());
}

TEST(TokenChecksTest, TruncateKeepsWhatIsStillKnown) {
  const Trajectory a(1);
  TokenChecks checks = Stored(a, 100);
  checks.Truncate(100);
  EXPECT_EQ(checks.At(100), a.CheckAt(100));
  checks.Truncate(70);
  EXPECT_EQ(checks.rows(), 70);
  EXPECT_EQ(checks.At(70), std::nullopt);
  EXPECT_EQ(checks.At(64), a.CheckAt(64));
  EXPECT_EQ(checks.At(96), std::nullopt);
  checks.Truncate(64);
  EXPECT_EQ(checks.At(64), a.CheckAt(64));
  checks.Truncate(0);
  EXPECT_EQ(checks.At(0), 0u);
  Take(checks, a.Slice(0, 33));
  EXPECT_EQ(checks.At(33), a.CheckAt(33));
}

TEST(TokenChecksTest, ARepeatTeachesNothingNew) {
  const Trajectory a(1);
  TokenChecks checks(kWindow);
  Take(checks, {.rows = {0, 50}});
  Take(checks, a.Slice(0, 50));
  EXPECT_EQ(checks.At(32), std::nullopt);
  EXPECT_EQ(checks.At(50), std::nullopt);
}

}  // namespace
}  // namespace routing_replay::server
