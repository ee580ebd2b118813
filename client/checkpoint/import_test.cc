// What an import makes of a directory and of what the run has already, without a server.
#include "client/checkpoint/import.h"

#include <random>

#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

using ::testing::ElementsAre;
using testing::Fails;
using ::testing::IsEmpty;

uint32_t CheckOf(const std::vector<uint32_t>& tokens) {
  return TokenCheckExtend(0, {reinterpret_cast<const uint8_t*>(tokens.data()), tokens.size() * sizeof(uint32_t)});
}

TEST(TokensWithCheckTest, AnyCheckIsReached) {
  std::mt19937 random(3);
  for (int i = 0; i < 500; ++i) {
    const uint32_t check = i == 0 ? 0 : i == 1 ? UINT32_MAX : random();
    const int64_t rows = 1 + random() % 300;
    const std::vector<uint32_t> tokens = TokensWithCheck(rows, check);
    ASSERT_EQ(static_cast<int64_t>(tokens.size()), rows);
    ASSERT_EQ(CheckOf(tokens), check);
  }
}

class SampleImportTest : public ::testing::Test {
 protected:
  SampleImportTest() {
    auto exporter = *RunExporter::Create(directory_, "run", Producer::kRollout, geometry_);
    for (size_t i = 0; i < ids_.size(); ++i) ids_[i] = static_cast<uint8_t>(i * 7 % 8);
    EXPECT_OK(exporter->Add({.sample = "s",
                             .group = 3,
                             .num_tokens = 11,
                             .revision = 1,
                             .content_id = 99,
                             .unrecorded = {{4, 6}},
                             .weights = {{{0, 7}, 5, "x"}, {{7, 10}, 6, ""}},
                             .token_checks = {{10, 0xABCD}}},
                            ids_));
    EXPECT_OK(exporter->Finish());
    exported_ = *ReadExportedRun(directory_);
  }
  ~SampleImportTest() override { std::filesystem::remove_all(directory_); }

  absl::StatusOr<SampleImport> Begin(const std::optional<SampleState>& there = std::nullopt) {
    return SampleImport::Begin(directory_, geometry_, Producer::kRollout, exported_.samples[0], there);
  }
  // What the run has after the first `rows` rows.
  static SampleState There(int64_t rows) {
    SampleState state{.sample = "s", .committed_rows = rows, .revision = 4, .content_id = 5};
    state.unrecorded = Clip({{{4, 6}}}, {0, rows});
    if (rows > 0) state.weights = {{{0, std::min<int64_t>(rows, 7)}, 5, "x"}};
    if (rows > 7) state.weights.push_back({{7, rows}, 6, ""});
    return state;
  }
  void ExpectConflict(const SampleState& there, int64_t row) {
    const auto refused = Begin(there);
    ASSERT_THAT(refused, Fails(absl::StatusCode::kAlreadyExists, Reason::kConflictingRows));
    EXPECT_EQ(GetErrorDetail(refused.status())->sample, "s");
    EXPECT_EQ(GetErrorDetail(refused.status())->row, row);
  }

  const Geometry geometry_ = Geometry::Uniform(2, 8, 2);
  std::vector<uint8_t> ids_ = std::vector<uint8_t>(8 * 2 * 2);
  ExportedRun exported_{.geometry = geometry_};
  const std::filesystem::path directory_ =
      std::filesystem::path(::testing::TempDir()) / ("sample_import_" + std::to_string(std::random_device()()));
};

TEST_F(SampleImportTest, ANewSampleIsAppendedWhole) {
  ASSERT_OK_AND_ASSIGN(const SampleImport import, Begin());
  EXPECT_THAT(import.to_compare(), IsEmpty());
  const std::vector<ImportAppend> appends = import.Appends();
  ASSERT_EQ(appends.size(), 2u);
  EXPECT_EQ(appends[0].options.row_start, 0);
  EXPECT_THAT(appends[0].options.unrecorded, ElementsAre(RowRange{4, 6}));
  EXPECT_THAT(appends[0].options.weights, ElementsAre(WeightSpan{{0, 7}, 5, "x"}, WeightSpan{{7, 9}, 6, ""}));
  EXPECT_EQ(appends[0].options.group, 3);
  EXPECT_THAT(appends[0].tokens, IsEmpty());
  EXPECT_FALSE(appends[0].options.seal_num_tokens);
  EXPECT_EQ(appends[0].ids, absl::MakeConstSpan(ids_).first(7 * 4));
  EXPECT_EQ(appends[1].options.row_start, 9);
  EXPECT_THAT(appends[1].options.weights, ElementsAre(WeightSpan{{9, 10}, 6, ""}));
  EXPECT_EQ(appends[1].options.seal_num_tokens, 11);
  EXPECT_EQ(CheckOf(appends[1].tokens), 0xABCDu);
  EXPECT_EQ(appends[1].ids, absl::MakeConstSpan(ids_).subspan(7 * 4));
}

TEST_F(SampleImportTest, WhatIsThereIsComparedAndGoesOn) {
  for (int64_t rows = 0; rows <= 10; ++rows) {
    ASSERT_OK_AND_ASSIGN(const SampleImport import, Begin(There(rows)));
    EXPECT_EQ(import.to_compare(), Subtract({0, rows}, exported_.samples[0].unrecorded)) << rows;
    const std::vector<ImportAppend> appends = import.Appends();
    ASSERT_FALSE(appends.empty());
    EXPECT_EQ(appends[0].options.row_start, rows);
    EXPECT_EQ(appends[0].options.revision, 4);
    EXPECT_EQ(appends.back().options.seal_num_tokens, 11);
  }
}

TEST_F(SampleImportTest, TheVeryContentIsNotLookedAt) {
  SampleState there = There(10);
  there.num_tokens = 11;
  there.revision = 1;
  there.content_id = 99;
  there.group = exported_.samples[0].group;
  std::filesystem::remove(directory_ / exported_.samples[0].file);
  ASSERT_OK_AND_ASSIGN(const SampleImport import, Begin(there));
  EXPECT_THAT(import.to_compare(), IsEmpty());
  EXPECT_THAT(import.Appends(), IsEmpty());
  ++there.group;
  ASSERT_OK_AND_ASSIGN(const SampleImport moved, Begin(there));
  ASSERT_EQ(moved.Appends().size(), 1);
  EXPECT_EQ(moved.Appends()[0].options.group, exported_.samples[0].group);
  EXPECT_EQ(moved.Appends()[0].tensor.shape[0], 0);
  there.content_id = 98;
  EXPECT_THAT(Begin(there), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
}

TEST_F(SampleImportTest, ConflictsNameTheRow) {
  ExpectConflict(There(11), 10);
  SampleState there = There(8);
  there.num_tokens = 9;
  ExpectConflict(there, 8);
  there = There(8);
  there.unrecorded = {{4, 7}};
  ExpectConflict(there, 6);
  there.unrecorded = {};
  ExpectConflict(there, 4);
  there = There(9);
  there.weights = {{{0, 9}, 5, "x"}};
  ExpectConflict(there, 7);
  there.weights = {{{0, 7}, 5, "y"}, {{7, 9}, 6, ""}};
  ExpectConflict(there, 0);
  there.weights = {};
  ExpectConflict(there, 0);
}

TEST_F(SampleImportTest, AnotherRouteNamesRowAndLayer) {
  ASSERT_OK_AND_ASSIGN(const SampleImport import, Begin(There(9)));
  SamplePlanes read;
  read.record.status = SampleStatus::kOk;
  read.rows = import.to_compare();
  read.ids = Buffer(7 * 2 * 2);
  for (size_t layer = 0; layer < 2; ++layer) {
    for (size_t i = 0; i < 7 * 2; ++i) read.ids.data()[layer * 14 + i] = ids_[i / 2 * 4 + layer * 2 + i % 2];
  }
  EXPECT_OK(import.Compare(read));
  read.ids.data()[14 + 5 * 2 + 1] ^= 1;  // The sixth recorded row of layer 1, which is row 7.
  const absl::Status refused = import.Compare(read);
  EXPECT_THAT(refused, Fails(absl::StatusCode::kAlreadyExists, Reason::kConflictingRows));
  EXPECT_EQ(GetErrorDetail(refused)->row, 7);
  EXPECT_EQ(GetErrorDetail(refused)->layer, 1);
  read.record.status = SampleStatus::kLost;
  EXPECT_EQ(import.Compare(read).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace routing_replay::client
