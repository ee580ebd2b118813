// Tests what verify finds in a damaged directory of an exported run.
#include <fstream>

#include "absl/strings/str_cat.h"
#include "proto/exported/exported_run.h"
#include "routing_replay/checkpoint.h"
#include "routing_replay/wire/error_detail.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

using testing::Fails;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kRows = 10;     // Rows 4 and 5 are unrecorded.
constexpr int64_t kFileRows = 8;  // [rows][2 layers][3 ids] of two bytes.
constexpr int64_t kRowBytes = 12;

class VerifyExportedTest : public ::testing::Test {
 protected:
  VerifyExportedTest() {
    const auto exporter = RunExporter::Create(directory_.path(), "run", Producer::kRollout, geometry_);
    EXPECT_OK(exporter);
    for (int i = 0; i < 3; ++i) {
      ExportedSample sample{
          .sample = absl::StrCat("s", 2 - i), .group = i, .num_tokens = kRows + 1, .unrecorded = {{4, 6}}};
      EXPECT_OK((*exporter)->Add(sample, ids_));
    }
    EXPECT_OK((*exporter)->Finish());
  }

  // Changes an id of sample s1.
  void Write(int64_t file_row, int32_t ordinal, int32_t k, uint16_t id) {
    const std::string path = directory_.path() + "/00000001.npy";
    const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(size - kFileRows * kRowBytes + file_row * kRowBytes + ordinal * 6 + k * 2);
    file.put(static_cast<char>(id & 0xFF)).put(static_cast<char>(id >> 8));
  }

  static std::vector<uint8_t> Ids() {
    std::vector<uint8_t> ids;
    for (int64_t row = 0; row < kFileRows; ++row) {
      for (const uint8_t id : {1, 2, 0, 7, 8, 9}) ids.insert(ids.end(), {id, 0});
    }
    return ids;
  }

  DamagedSample TheDamagedOne() {
    const auto outcome = VerifyExportedRun(directory_.path());
    EXPECT_OK(outcome);
    EXPECT_EQ(outcome->samples, 3);
    EXPECT_EQ(outcome->rows, 2 * kFileRows);
    EXPECT_EQ(outcome->damaged.size(), 1u);
    EXPECT_EQ(outcome->damaged[0].sample, "s1");
    return outcome->damaged[0];
  }

  const testing::ScratchDirectory directory_;
  const Geometry geometry_ =
      *Geometry::Create({.num_layers = 9, .moe_layer_ids = {3, 8}, .num_experts = {8, 300}, .top_k = {2, 3}});
  const std::vector<uint8_t> ids_ = Ids();
};

TEST_F(VerifyExportedTest, ADirectoryThatIsWhole) {
  ASSERT_OK_AND_ASSIGN(const VerifyOutcome outcome, VerifyExportedRun(directory_.path()));
  EXPECT_EQ(outcome.samples, 3);
  EXPECT_EQ(outcome.rows, 3 * kFileRows);
  EXPECT_GE(outcome.bytes, 3 * kFileRows * kRowBytes);
  EXPECT_THAT(outcome.damaged, IsEmpty());
  ASSERT_OK_AND_ASSIGN(const VerifyOutcome some, VerifyExportedRun(directory_.path(), {.groups = {{1, 3}}}));
  EXPECT_EQ(some.samples, 2);
}

TEST_F(VerifyExportedTest, AnotherIdIsFound) {
  Write(3, 1, 0, 299);  // A valid id that nobody appended there.
  EXPECT_THAT(TheDamagedOne().what, HasSubstr("CRC32C"));
}

TEST_F(VerifyExportedTest, AFileThatIsCutOrGone) {
  std::filesystem::resize_file(directory_.path() + "/00000001.npy", 100);
  EXPECT_EQ(TheDamagedOne().row, std::nullopt);
  std::filesystem::remove(directory_.path() + "/00000001.npy");
  EXPECT_THAT(TheDamagedOne().what, HasSubstr("00000001.npy"));
}

TEST_F(VerifyExportedTest, WhatIsNoExportedRunIsAnError) {
  EXPECT_THAT(VerifyExportedRun(directory_.path() + "/nosuch"),
              Fails(absl::StatusCode::kFailedPrecondition, Reason::kNotCommitted));
  std::ofstream(directory_.path() + "/index.json", std::ios::app) << " ";
  EXPECT_THAT(VerifyExportedRun(directory_.path()), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
}

}  // namespace
}  // namespace routing_replay::client
