// After a seal the blocks are the same, however the rows arrived.
#include <random>

#include "absl/strings/str_cat.h"
#include "server/store/conformance/conformance.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr auto kRollout = Producer::kRollout;
constexpr int64_t kRows = 150;

struct StoredBytes {
  RowRange rows;
  Codec codec;
  std::vector<uint32_t> crc;
  std::vector<uint8_t> bytes;
  friend bool operator==(const StoredBytes&, const StoredBytes&) = default;
};

std::vector<StoredBytes> StoredIn(Store& store, const std::string& sample) {
  const std::vector<RowRange> all{{0, kMaxRows}};
  absl::StatusOr<SampleSnapshot> snapshot = store.Snapshot("run", kRollout, {.sample = sample}, all);
  EXPECT_OK(snapshot);
  std::vector<StoredBytes> blocks;
  for (const StoredRows& stored : snapshot->rows) {
    const absl::StatusOr<LoadedBlock> loaded = Load(stored.block);
    EXPECT_OK(loaded);
    if (!loaded.ok()) continue;
    const BlockView& block = loaded->view;
    EXPECT_EQ(stored.rows, block.rows);
    EXPECT_EQ(stored.block->rows(), block.rows);
    EXPECT_EQ(stored.block->codec(), block.codec);
    blocks.push_back({block.rows,
                      block.codec,
                      {block.plane_crc32c.begin(), block.plane_crc32c.end()},
                      {block.bytes.begin(), block.bytes.end()}});
  }
  return blocks;
}

// Sends rows [0, kRows) in random pieces, some twice or thrice, overlapping, in random codecs.
class RandomSender {
 public:
  RandomSender(uint32_t seed, std::vector<RowRange> unrecorded) : random_(seed), unrecorded_(std::move(unrecorded)) {}

  AppendSpec Next(const std::string& sample, int64_t committed) {
    AppendSpec spec{.sample = sample};
    const int64_t back = random_() % 3 == 0 ? random_() % 40 : 0;
    spec.rows.begin = std::max<int64_t>(0, committed - back);
    spec.rows.end = std::min<int64_t>(kRows, committed + random_() % (random_() % 4 == 0 ? 70 : 6));
    spec.rows.end = std::max(spec.rows.begin, spec.rows.end);
    spec.token_check_start = random_() % 2 == 0;
    // Rows [0, 50) have weight version 0, rows [50, 100) version 1, and so on. No append contains rows of two versions.
    const int64_t window = committed / 50;
    spec.rows.end = std::min(spec.rows.end, std::max((window + 1) * 50, spec.rows.begin));
    spec.weight_version = window;
    spec.unrecorded = Clip(unrecorded_, spec.rows);
    spec.codec = random_() % 2 == 0 ? Codec::kRaw : Codec::kPacked;
    spec.max_block_rows = 1 + random_() % 40;
    if (spec.rows.end == kRows && random_() % 2 == 0) spec.seal_num_tokens = kRows + 1;
    return spec;
  }

 private:
  std::mt19937 random_;
  const std::vector<RowRange> unrecorded_;
};

TEST_P(StoreConformance, AnySplitGivesTheSameBlocksAfterTheSeal) {
  const std::vector<RowRange> unrecorded{{0, 2}, {10, 33}, {64, 65}, {96, 130}, {149, 150}};
  for (Codec codec : {Codec::kRaw, Codec::kPacked}) {
    ReopenRun({.block_rows = kWindow, .codec = codec});
    std::vector<RowRange> expected_rows;
    for (RowRange recorded : Subtract({0, kRows}, unrecorded)) {
      for (RowRange rows : SplitAtWindows(recorded, kWindow)) expected_rows.push_back(rows);
    }
    std::vector<StoredBytes> first;
    SampleState first_state;
    for (uint32_t seed = 0; seed < 40; ++seed) {
      const std::string sample = absl::StrCat("s", seed);
      RandomSender sender(seed, unrecorded);
      int64_t committed = 0;
      while (committed < kRows) {
        ASSERT_OK_AND_ASSIGN(const AppendAck ack, Append(sender.Next(sample, committed)));
        EXPECT_EQ(ack.conflicting_rows, 0);
        committed = ack.committed_rows;
      }
      ASSERT_OK(store_->Seal("run", kRollout, sample, kRows + 1, 0));
      const SampleState state = Stat(sample);
      EXPECT_EQ(Read(sample), ExpectedRows(geometry(), {}, kRows, unrecorded));
      const std::vector<StoredBytes> blocks = StoredIn(*store_, sample);
      if (seed == 0) {
        first = blocks;
        first_state = state;
        EXPECT_EQ(Blocks(sample), expected_rows);
        EXPECT_EQ(first[1].codec, codec);
      }
      EXPECT_EQ(blocks, first) << seed;
      EXPECT_EQ(state.unrecorded, unrecorded);
      EXPECT_EQ(state.weights, first_state.weights);
      EXPECT_EQ(state.token_check, first_state.token_check);
      EXPECT_EQ(state.stored_bytes, first_state.stored_bytes);
    }
  }
}

TEST_P(StoreConformance, ATruncatedSampleEndsInTheSameBlocks) {
  ASSERT_OK(Append({.sample = "plain", .rows = {0, 100}, .seal_num_tokens = 101}));
  for (int64_t rows : {0, 5, 32, 40, 95, 96, 99, 100}) {
    const std::string sample = absl::StrCat("s", rows);
    ASSERT_OK(Append({.sample = sample, .rows = {0, 100}, .seal_num_tokens = 101}));
    ASSERT_OK(store_->Truncate("run", kRollout, sample, rows, std::nullopt));
    ASSERT_OK(Append({.sample = sample, .rows = {rows, 100}, .revision = 1, .seal_num_tokens = 101}));
    EXPECT_EQ(StoredIn(*store_, sample), StoredIn(*store_, "plain")) << rows;
  }
}

TEST_P(StoreConformance, RowByRowAppendsAreReadableAtAnyTime) {
  ReopenRun({.block_rows = 256});
  for (int64_t row = 0; row < 600; ++row) {
    ASSERT_OK(Append({.rows = {row, row + 1}}));
    if (row % 37 == 0) {
      EXPECT_EQ(Read("s"), ExpectedRows(geometry(), {}, row + 1));
    }
  }
  // In the open window, single rows have been merged into larger pieces.
  const std::vector<RowRange> all{{0, 600}};
  ASSERT_OK_AND_ASSIGN(const SampleSnapshot snapshot, store_->Snapshot("run", kRollout, {.sample = "s"}, all));
  EXPECT_LE(snapshot.rows.size(), 40u);
}

// A sample of a million rows: appends, reads at its beginning, middle and end, and a truncation take a time that fits
// their number of rows.
TEST_P(StoreConformance, AMillionRows) {
  constexpr int64_t kMillion = int64_t{1} << 20, kAppend = int64_t{1} << 15, kBlock = 256;
  ReopenRun({.block_rows = kBlock});
  std::vector<RowIds> rows;
  for (int64_t row = 0; row < kBlock; ++row) rows.push_back(Trajectory{}.RowAt(geometry(), row));
  const Block block = MakeBlock(geometry(), 0, rows, Codec::kRaw);
  for (int64_t begin = 0; begin < kMillion; begin += kAppend) {
    AppendCommand command{.run = "run", .geometry = run_.geometry};
    command.header = {.sample = "s", .rows = RowRange::OfSize(begin, kAppend)};
    if (begin + kAppend == kMillion) command.header.seal_num_tokens = kMillion + 1;
    for (RowRange window : SplitAtWindows(command.header.rows, kBlock)) {
      Block copy{.rows = window, .codec = block.codec, .plane_crc32c = block.plane_crc32c};
      copy.bytes = Buffer(block.bytes.size());
      std::copy_n(block.bytes.data(), block.bytes.size(), copy.bytes.data());
      command.blocks.push_back(std::move(copy));
    }
    ASSERT_OK(store_->Append(std::move(command)));
  }
  EXPECT_EQ(Stat("s").committed_rows, kMillion);
  EXPECT_TRUE(Stat("s").sealed());
  const std::vector<RowRange> asked{{0, 3}, {700'000, 700'002}, {kMillion - 1, kMillion}};
  ASSERT_OK_AND_ASSIGN(const SampleSnapshot some, store_->Snapshot("run", kRollout, {.sample = "s"}, asked));
  const std::vector<RowRange> all{{0, kMillion}};
  ASSERT_OK_AND_ASSIGN(const SampleSnapshot snapshot, store_->Snapshot("run", kRollout, {.sample = "s"}, all));
  EXPECT_EQ(some.rows.size(), 3u);
  ASSERT_EQ(snapshot.rows.size(), static_cast<size_t>(kMillion / kBlock));
  for (const SampleSnapshot* of : {&some, &snapshot}) {
    for (const StoredRows& stored : of->rows) {
      ASSERT_OK_AND_ASSIGN(const LoadedBlock loaded, Load(stored.block));
      ASSERT_EQ(loaded.view.bytes, block.bytes.span());
    }
  }
  ASSERT_OK(store_->Truncate("run", kRollout, "s", 1000, std::nullopt));
  EXPECT_EQ(Stat("s").committed_rows, 1000);
}

}  // namespace
}  // namespace routing_replay::testing
