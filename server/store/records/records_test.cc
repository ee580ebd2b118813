#include "server/store/records/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "server/store/conformance/conformance.h"
#include "server/store/sample_rules.h"

namespace routing_replay::server {
namespace {

using testing::Trajectory;

constexpr int32_t kWindow = 32;

// Random contents such as samples may come to have. Their blocks have rows, but no bytes.
class RandomContent {
 public:
  explicit RandomContent(uint32_t seed) : RandomContent(seed, seed * 7 % 300) {}
  RandomContent(uint32_t seed, int64_t rows) : random_(seed), content_(TokenChecks(kWindow)) {
    content_.revision = Below(5);
    content_.content_id = random_();
    content_.restart_nonce = Below(2) * random_();
    if (Below(2) == 1) content_.prefix = {"parent", Below(100), Below(3)};
    content_.group = Below(1000) - 500;
    content_.engine = absl::StrCat("engine ", seed);
    while (content_.rows() < rows) Add({content_.rows(), std::min(rows, content_.rows() + 1 + Below(70))});
    if (Below(2) == 1) content_.num_tokens = rows + 1;
    if (Below(2) == 1) content_.Truncate(Below(rows + 1));
  }

  const SampleContent& content() const { return content_; }
  void Grow() {
    content_.num_tokens.reset();
    Add({content_.rows(), content_.rows() + 1 + Below(40)});
  }
  // Adds unrecorded rows without tokens, which leave nothing to write in a window's record.
  void GrowQuietly(int64_t rows) {
    content_.num_tokens.reset();
    const RowRange added{content_.rows(), content_.rows() + rows};
    AppendMerged(content_.unrecorded, added);
    AppendWeights(content_.weights, {added, Below(2), "label"});
    content_.tokens.Extend({added, {}}, std::nullopt);
  }

  void Truncate(int64_t rows) { content_.Truncate(rows); }

  std::string head() const { return EncodeHead(content_); }
  // The records of all windows; an empty record if the store writes none.
  std::vector<std::string> all_windows() const {
    std::vector<std::string> windows;
    for (int64_t i = 0; i < WindowCount(content_.rows(), kWindow); ++i) {
      windows.push_back(EncodeWindow(content_, content_.pieces.all(), kWindow, i,
                                     [&](const StoredBlock& block) { return ids_.at(&block); }));
    }
    return windows;
  }
  std::vector<std::string> windows() const {
    std::vector<std::string> windows = all_windows();
    std::erase(windows, "");
    return windows;
  }
  absl::StatusOr<SampleContent> Decode(const std::string& head, const std::vector<std::string>& windows) {
    return DecodeContent(head, windows, kWindow, [&](const BlockRef& ref) { return BlockAt(ref); });
  }
  // Everything in a content; blocks are represented by their numbers.
  std::string Describe(const SampleContent& content) const {
    const auto& ids = &content == &content_ ? ids_ : decoded_ids_;
    std::string text =
        absl::StrCat(content.revision, " ", content.content_id, " ", content.restart_nonce, " ", content.group, " ",
                     content.engine, " ", content.rows(), " T ", content.num_tokens.value_or(-1));
    if (content.prefix) {
      absl::StrAppend(&text, " of ", content.prefix->sample, content.prefix->rows, " ", content.prefix->revision);
    }
    for (RowRange range : content.unrecorded) absl::StrAppend(&text, " without ", ToString(range));
    for (RowRange range : content.tokens.known()) absl::StrAppend(&text, " known ", ToString(range));
    for (int64_t row = 0; row <= content.rows(); ++row) {
      if (const auto check = content.tokens.At(row)) absl::StrAppend(&text, " ", row, ":", *check);
    }
    for (const WeightSpan& span : content.weights) {
      absl::StrAppend(&text, " weights ", ToString(span.rows), " ", span.version, span.label);
    }
    for (const RowPiece& piece : content.pieces.all()) {
      absl::StrAppend(&text, " piece ", ids.at(piece.stored.get()), ToString(piece.rows), " of ",
                      ToString(piece.stored->rows()), CodecName(piece.stored->codec()), piece.shared);
    }
    return text;
  }

 private:
  int64_t Below(int64_t end) { return static_cast<int64_t>(random_() % end); }

  std::shared_ptr<StoredBlock> BlockAt(const BlockRef& ref) {
    auto block = std::make_shared<MemoryHome>(nullptr)->Keep(Block{.rows = ref.rows, .codec = ref.codec}, 0);
    decoded_ids_[block.get()] = ref.id;
    return block;
  }

  void Add(RowRange rows) {
    const bool recorded = Below(4) > 0;
    if (!recorded) AppendMerged(content_.unrecorded, rows);
    for (RowRange window : SplitAtWindows(recorded ? rows : RowRange{}, kWindow)) {
      const Codec codec = Below(2) == 1 ? Codec::kRaw : Codec::kPacked;
      auto block = std::make_shared<MemoryHome>(nullptr)->Keep(Block{.rows = window, .codec = codec}, 0);
      ids_[block.get()] = random_();
      content_.pieces.Append({std::move(block), window, Below(2) == 1});
    }
    AppendWeights(content_.weights, {rows, Below(3), absl::StrCat("label", Below(2))});
    const std::string ids = Trajectory{}.TokenIds(rows);
    const AppendTokens tokens{rows, {reinterpret_cast<const uint8_t*>(ids.data()), Below(4) > 0 ? ids.size() : 0}};
    content_.tokens.Extend(tokens, content_.tokens.Compare(tokens).check_at_end);
  }

  std::mt19937 random_;
  SampleContent content_;
  std::map<const StoredBlock*, uint64_t> ids_;
  std::map<const StoredBlock*, uint64_t> decoded_ids_;
};

TEST(SampleRecord, AContentComesBackAsItWas) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    RandomContent random(seed);
    ASSERT_OK_AND_ASSIGN(const SampleContent decoded, random.Decode(random.head(), random.windows()));
    EXPECT_EQ(random.Describe(decoded), random.Describe(random.content()));
  }
}

// Writes records as a store does: each change writes the head and the windows from its first row on.
TEST(SampleRecord, WindowsThatWereWrittenBeforeStayRight) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    RandomContent random(seed, /*rows=*/0);
    std::vector<std::string> written;
    while (random.content().rows() < 200) {
      const int64_t first = random.content().rows() / kWindow;
      random.Grow();
      const std::vector<std::string> windows = random.all_windows();
      written.resize(first);
      written.insert(written.end(), windows.begin() + first, windows.end());
      std::vector<std::string> records = written;
      std::erase(records, "");
      ASSERT_OK_AND_ASSIGN(const SampleContent decoded, random.Decode(random.head(), records));
      ASSERT_EQ(random.Describe(decoded), random.Describe(random.content()));
    }
  }
}

// A window of unrecorded rows without tokens has no record; after any series of changes the decoded content is the
// same.
TEST(SampleRecord, EmptyWindowsNeedNoRecord) {
  int64_t left_out = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    RandomContent random(seed, /*rows=*/0);
    std::map<int64_t, std::string> written;
    std::mt19937 choose(seed);
    for (int change = 0; change < 12; ++change) {
      int64_t first = random.content().rows() / kWindow;
      switch (choose() % 4) {
        case 0:
          random.Truncate(static_cast<int64_t>(choose() % (random.content().rows() + 1)));
          first = random.content().rows() / kWindow;
          break;
        case 1:
          random.Grow();
          break;
        default:
          random.GrowQuietly(1 + choose() % 400);
      }
      const std::vector<std::string> windows = random.all_windows();
      written.erase(written.lower_bound(first), written.end());
      for (int64_t window = first; window < std::ssize(windows); ++window) {
        if (!windows[window].empty()) written[window] = windows[window];
      }
      left_out += std::ssize(windows) - std::ssize(written);
      std::vector<std::string> records;
      for (const auto& [window, record] : written) records.push_back(record);
      ASSERT_OK_AND_ASSIGN(const SampleContent decoded, random.Decode(random.head(), records));
      ASSERT_EQ(random.Describe(decoded), random.Describe(random.content()));
    }
  }
  EXPECT_GT(left_out, 1000);
}

TEST(SampleRecord, EveryFlippedBitIsSeen) {
  RandomContent random(3, 200);
  const std::string head = random.head();
  const std::vector<std::string> windows = random.windows();
  ASSERT_GT(windows.size(), 2);
  for (size_t bit = 0; bit < head.size() * 8; ++bit) {
    std::string bad = head;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    EXPECT_THAT(random.Decode(bad, windows), testing::Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
  }
  for (size_t bit = 0; bit < windows[1].size() * 8; ++bit) {
    std::vector<std::string> bad = windows;
    bad[1][bit / 8] = static_cast<char>(bad[1][bit / 8] ^ 1 << bit % 8);
    EXPECT_THAT(random.Decode(head, bad), testing::Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
  }
}

// Each record is undamaged, but together they do not belong to one state of the sample. DecodeContent must notice that.
TEST(SampleRecord, RecordsThatDoNotFitTogetherAreSeen) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    RandomContent random(seed);
    const std::vector<std::string> windows = random.windows();
    const std::string head = random.head();
    if (windows.size() < 2) continue;
    std::vector<std::string> fewer(windows.begin(), windows.end() - 1);
    EXPECT_THAT(random.Decode(head, fewer), testing::Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
    std::vector<std::string> more = windows;
    more.push_back(windows.back());
    EXPECT_THAT(random.Decode(head, more), testing::Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
    std::vector<std::string> swapped = windows;
    std::swap(swapped[0], swapped[1]);
    EXPECT_THAT(random.Decode(head, swapped), testing::Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
  }
}

}  // namespace
}  // namespace routing_replay::server
