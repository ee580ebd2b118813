#include "server/store/sample/sample_content.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "server/store/conformance/conformance.h"

namespace routing_replay::server {
namespace {

using testing::TestGeometry;

constexpr int32_t kBlockRows = 32;

// A content with any of its fields as they may be.
class RandomContent {
 public:
  explicit RandomContent(uint32_t seed) : random_(seed) {}

  SampleContent Make() {
    const int64_t rows = Below(5) == 0 ? 0 : Below(300);
    SampleContent content(Tokens(rows));
    content.group = Number();
    content.revision = Below(1000);
    content.content_id = static_cast<uint64_t>(Number());
    content.restart_nonce = static_cast<uint64_t>(Number());
    if (Below(2)) content.prefix = PrefixReference{Text(), Below(100), Below(5)};
    content.engine = Text();
    if (Below(2)) content.num_tokens = rows + 1;
    content.unrecorded = Ranges(rows);
    for (int64_t row = 0; row < rows;) {
      const RowRange range{row, std::min(rows, row + 1 + Below(90))};
      AppendProvenance(content.provenance, {range, Number(), Text(), Below(2) ? content.engine : Text(), 1 + Below(9)});
      row = range.end;
    }
    const bool odd = Below(2);
    for (int64_t row = 0; row + (odd ? 1 : kBlockRows - 1) < rows; row += kBlockRows) {
      content.pieces.Append({std::make_shared<MemoryHome>(nullptr)->Keep(Block{.rows = {row, row + kBlockRows}}, 7),
                             {row + (odd ? Below(2) : 0), std::min(rows, row + kBlockRows)},
                             odd && Below(2) == 1});
    }
    return content;
  }

 private:
  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  // Of any length, of either sign.
  int64_t Number() { return static_cast<int64_t>(random_() >> Below(64)) * (Below(2) ? 1 : -1); }
  std::string Text() { return std::string(Below(3) * Below(150), static_cast<char>('a' + Below(26))); }
  std::vector<RowRange> Ranges(int64_t rows) {
    std::vector<RowRange> ranges;
    for (int64_t row = Below(9); row < rows; row += 1 + Below(60)) {
      const RowRange range{row, std::min(rows, row + 1 + Below(20))};
      AppendMerged(ranges, range);
      row = range.end;
    }
    return ranges;
  }
  std::optional<uint32_t> Check() { return Below(3) ? std::optional(static_cast<uint32_t>(random_())) : std::nullopt; }
  TokenChecks Tokens(int64_t rows) {
    std::vector<std::optional<uint32_t>> boundaries(rows / kBlockRows);
    for (auto& check : boundaries) check = Check();
    std::optional<uint32_t> end = rows == 0 ? 0 : Check();
    if (rows > 0 && rows % kBlockRows == 0) end = boundaries.back();
    return TokenChecks(kBlockRows, rows, end, std::move(boundaries), Ranges(rows));
  }

  std::mt19937_64 random_;
};

std::string Describe(const SampleContent& content) {
  std::string text =
      absl::StrCat(content.revision, " ", content.content_id, " ", content.restart_nonce, " ", content.group, " ",
                   content.engine, " ", content.num_tokens.value_or(-1), " ", content.rows());
  if (content.prefix) {
    absl::StrAppend(&text, " prefix ", content.prefix->sample, content.prefix->rows, " ", content.prefix->revision);
  }
  for (RowRange range : content.unrecorded) absl::StrAppend(&text, " without ", ToString(range));
  for (RowRange range : content.tokens.known()) absl::StrAppend(&text, " known ", ToString(range));
  for (int64_t row = 0; row <= content.rows(); ++row) {
    if (const auto check = content.tokens.At(row)) absl::StrAppend(&text, " check ", row, " ", *check);
  }
  for (const Provenance& origin : content.provenance) {
    absl::StrAppend(&text, " from ", ToString(origin.rows), origin.weight_version, origin.weight_label, "/",
                    origin.engine, "/", origin.appends);
  }
  return text;
}

std::string DescribePieces(absl::Span<const RowPiece> pieces) {
  std::string text;
  for (const RowPiece& piece : pieces) {
    absl::StrAppend(&text, " ", absl::Hex(reinterpret_cast<uintptr_t>(piece.stored.get())), ToString(piece.rows),
                    piece.shared);
  }
  return text;
}

TEST(RestingContentTest, AContentComesBackAsItWas) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    SampleContent content = RandomContent(seed).Make();
    const std::string before = Describe(content);
    const int64_t charged = content.pieces.charged_bytes();
    const int64_t group = content.group, rows = content.rows();
    const std::string pieces = DescribePieces(content.pieces.all());
    const RowRange part{rows / 3, rows - rows / 5};
    const std::string pieces_of_part = DescribePieces(content.pieces.Find(part));
    RestingContent resting(std::move(content));
    EXPECT_FALSE(resting.empty());
    EXPECT_EQ(resting.group(), group);
    EXPECT_EQ(resting.rows(), rows);
    {
      const SampleContent copy = resting.Copy(kBlockRows);
      EXPECT_EQ(copy.pieces.charged_bytes(), charged);
      ASSERT_EQ(Describe(copy), before) << seed;
      EXPECT_EQ(DescribePieces(copy.pieces.Find({0, rows})), pieces);
      EXPECT_EQ(DescribePieces(copy.pieces.Find(part)), pieces_of_part);
    }
    const SampleContent again = resting.Wake(kBlockRows);
    EXPECT_TRUE(resting.empty());
    ASSERT_EQ(Describe(again), before);
    EXPECT_EQ(DescribePieces(again.pieces.all()), pieces);
    for (const RowPiece& piece : again.pieces.all()) EXPECT_TRUE(piece.exclusive());
  }
}

}  // namespace
}  // namespace routing_replay::server
