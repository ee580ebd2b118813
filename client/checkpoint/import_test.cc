// Tests what an import does with a sample of a directory, without a server.
#include "client/checkpoint/import.h"

#include <random>

#include "routing_replay/wire/checksum.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

using ::testing::ElementsAre;
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

  std::vector<ImportAppend> Appends(RowRange rows) {
    return ImportAppends(geometry_, Producer::kRollout, exported_.samples[0], ids_, rows, 4);
  }

  const Geometry geometry_ = Geometry::Uniform(2, 8, 2);
  std::vector<uint8_t> ids_ = std::vector<uint8_t>(8 * 2 * 2);
  ExportedRun exported_{.geometry = geometry_};
  const std::filesystem::path directory_ =
      std::filesystem::path(::testing::TempDir()) / ("sample_import_" + std::to_string(std::random_device()()));
};

TEST_F(SampleImportTest, ANewSampleIsAppendedWhole) {
  const std::vector<ImportAppend> appends = Appends({0, 10});
  ASSERT_EQ(appends.size(), 2u);
  EXPECT_EQ(appends[0].options.row_start, 0);
  EXPECT_THAT(appends[0].options.unrecorded, ElementsAre(RowRange{4, 6}));
  EXPECT_THAT(appends[0].options.weights, ElementsAre(WeightSpan{{0, 7}, 5, "x"}, WeightSpan{{7, 9}, 6, ""}));
  EXPECT_EQ(appends[0].options.group, 3);
  EXPECT_EQ(appends[0].options.revision, 4);
  EXPECT_THAT(appends[0].tokens, IsEmpty());
  EXPECT_EQ(appends[0].ids, absl::MakeConstSpan(ids_).first(7 * 4));
  EXPECT_EQ(appends[1].options.row_start, 9);
  EXPECT_THAT(appends[1].options.weights, ElementsAre(WeightSpan{{9, 10}, 6, ""}));
  EXPECT_EQ(CheckOf(appends[1].tokens), 0xABCDu);
  EXPECT_EQ(appends[1].ids, absl::MakeConstSpan(ids_).subspan(7 * 4));
}

TEST_F(SampleImportTest, OfSomeRows) {
  for (int64_t rows = 0; rows <= 10; ++rows) {
    size_t bytes = 0;
    for (const RowRange part : {RowRange{0, rows}, RowRange{rows, 10}}) {
      const std::vector<ImportAppend> appends = Appends(part);
      ASSERT_FALSE(appends.empty());
      EXPECT_EQ(appends[0].options.row_start, part.begin);
      EXPECT_EQ(!appends.back().tokens.empty(), part.end == 10 && !part.empty());
      for (const ImportAppend& append : appends) bytes += append.ids.size();
    }
    EXPECT_EQ(bytes, ids_.size());
  }
}

}  // namespace
}  // namespace routing_replay::client
