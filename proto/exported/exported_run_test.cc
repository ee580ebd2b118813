// A run written and read back, and every way in which a directory is not what was written.
#include "proto/exported/exported_run.h"

#include <algorithm>
#include <random>

#include "proto/exported/files.h"
#include "proto/exported/layout.h"
#include "proto/wire/payload/npy.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using ::testing::ElementsAre;
using testing::Fails;

constexpr char kIndex[] = "index.1.json";

class ExportedRunTest : public ::testing::Test {
 protected:
  ~ExportedRunTest() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<RunExporter> NewExporter(const Geometry& geometry) {
    auto exporter = RunExporter::Create(directory_, "run", Producer::kTrainer, geometry);
    EXPECT_OK(exporter);
    return *std::move(exporter);
  }
  static std::vector<uint8_t> Ids(int64_t bytes) {
    std::vector<uint8_t> ids(bytes);
    for (int64_t i = 0; i < bytes; ++i) ids[i] = static_cast<uint8_t>(i % 8);
    return ids;
  }
  // Two samples, a finished export.
  void Export() {
    const auto exporter = NewExporter(geometry_);
    ASSERT_OK(exporter->Add({.sample = "a/0",
                             .group = 4,
                             .num_tokens = 6,
                             .revision = 2,
                             .content_id = UINT64_MAX,
                             .unrecorded = {{1, 3}},
                             .weights = {{.rows = {0, 2}, .version = 5, .label = "x"}, {.rows = {2, 5}, .version = -1}},
                             .token_checks = {{5, 0xFFFFFFFF}}},
                            Ids(3 * 2 * 2)));
    ASSERT_OK(exporter->Add({.sample = "b", .num_tokens = 1}, {}));
    ASSERT_OK(exporter->Finish());
  }
  void Overwrite(const std::string& file, absl::Span<const uint8_t> bytes) {
    std::filesystem::remove(directory_ / file);
    ASSERT_OK(WriteNewFile(directory_ / file, {bytes}));
  }
  void Change(const std::string& file, size_t at) {
    auto bytes = ReadFile(directory_ / file);
    ASSERT_OK(bytes);
    (*bytes)[at] ^= 1;
    Overwrite(file, *bytes);
  }
  // An index that says something else, with a marker that fits.
  void Rewrite(const std::string& from, const std::string& to) {
    const auto bytes = ReadFile(directory_ / kIndex);
    std::string index(bytes->begin(), bytes->end());
    const size_t at = index.find(from);
    ASSERT_NE(at, std::string::npos) << index;
    index.replace(at, from.size(), to);
    Overwrite(kIndex, AsBytes(index));
    Overwrite(kExportMarker, AsBytes(ExportMarker{1, Crc32c(AsBytes(index))}.ToText()));
  }

  const Geometry geometry_ = Geometry::Uniform(2, 8, 2);
  const std::filesystem::path directory_ =
      std::filesystem::path(::testing::TempDir()) / ("exported_run_" + std::to_string(std::random_device()()) + "_" +
                                                     ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(ExportedRunTest, WhatIsWrittenIsRead) {
  Export();
  ASSERT_OK_AND_ASSIGN(const ExportedRun run, ReadExportedRun(directory_));
  EXPECT_EQ(run.run, "run");
  EXPECT_EQ(run.producer, Producer::kTrainer);
  EXPECT_EQ(run.geometry, geometry_);
  ASSERT_EQ(run.samples.size(), 2u);
  const ExportedSample& sample = run.samples[0];
  EXPECT_EQ(sample.sample, "a/0");
  EXPECT_EQ(sample.group, 4);
  EXPECT_EQ(sample.num_tokens, 6);
  EXPECT_EQ(sample.revision, 2);
  EXPECT_EQ(sample.content_id, UINT64_MAX);
  EXPECT_THAT(sample.unrecorded, ElementsAre(RowRange{1, 3}));
  EXPECT_THAT(sample.weights, ElementsAre(WeightSpan{.rows = {0, 2}, .version = 5, .label = "x"},
                                          WeightSpan{.rows = {2, 5}, .version = -1}));
  EXPECT_THAT(sample.token_checks, ElementsAre(TokenCheck{5, 0xFFFFFFFF}));
  ASSERT_OK_AND_ASSIGN(const std::vector<uint8_t> file, ReadExportedFile(directory_, sample));
  ASSERT_OK_AND_ASSIGN(const NpyHeader header, ParseNpyHeader(file));
  EXPECT_EQ(header.dtype, DType::kU8);
  EXPECT_THAT(header.shape, ElementsAre(3, 2, 2));
  EXPECT_EQ(header.data_offset % 64, 0u);
  EXPECT_EQ(std::vector<uint8_t>(file.begin() + header.data_offset, file.end()), Ids(12));
  EXPECT_OK(ReadExportedFile(directory_, run.samples[1]));
}

TEST_F(ExportedRunTest, WidthAndKAreThoseOfTheLargestLayer) {
  const auto geometry =
      Geometry::Create({.num_layers = 2, .moe_layer_ids = {0, 1}, .num_experts = {8, 300}, .top_k = {2, 3}});
  ASSERT_OK(geometry);
  const auto exporter = NewExporter(*geometry);
  EXPECT_THAT(exporter->Add({.sample = "a", .num_tokens = 5}, Ids(4 * 2 * 3)),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kLength));
  for (const int64_t bytes : {4 * 2 * 3 * 2 - 1, 4 * 2 * 3 * 2 + 1}) {
    EXPECT_THAT(exporter->Add({.sample = "a", .num_tokens = 5}, Ids(bytes)),
                Fails(absl::StatusCode::kInvalidArgument, Reason::kLength));
  }
  EXPECT_THAT(exporter->Add({.sample = "a", .num_tokens = kMaxRows + 1}, {}),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kLength));
  // More rows than a sample can have, and so many that their ids, counted in 64 bits, are none.
  for (const int64_t tokens : {kMaxRows + 2, (int64_t{1} << 62) + 1}) {
    EXPECT_THAT(exporter->Add({.sample = "a", .num_tokens = tokens}, {}),
                Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  }
  EXPECT_OK(exporter->Add({.sample = "a", .num_tokens = 5}, Ids(4 * 2 * 3 * 2)));
  EXPECT_THAT(exporter->Add({.sample = "a", .num_tokens = 5}, Ids(4 * 2 * 3 * 2)),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_THAT(exporter->Add({.sample = "b", .num_tokens = 0}, {}),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
}

TEST_F(ExportedRunTest, WithoutAMarkerThereIsNoRun) {
  EXPECT_THAT(ReadExportedRun(directory_), Fails(absl::StatusCode::kFailedPrecondition, Reason::kNotCommitted));
  Export();
  std::filesystem::remove(directory_ / "DONE");
  EXPECT_THAT(ReadExportedRun(directory_), Fails(absl::StatusCode::kFailedPrecondition, Reason::kNotCommitted));
  EXPECT_EQ(RunExporter::Create(directory_, "run", Producer::kRollout, geometry_).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(ExportedRunTest, EveryChangedByteIsFound) {
  Export();
  ASSERT_OK_AND_ASSIGN(const ExportedRun run, ReadExportedRun(directory_));
  const ExportedSample& sample = run.samples[0];
  for (int64_t at = 0; at < sample.file_bytes; at += 3) {
    Change(sample.file, at);
    const auto refused = ReadExportedFile(directory_, sample);
    ASSERT_THAT(refused, Fails(absl::StatusCode::kDataLoss, Reason::kChecksum)) << at;
    EXPECT_EQ(GetErrorDetail(refused.status())->sample, "a/0");
    Change(sample.file, at);
  }
  std::filesystem::remove(directory_ / sample.file);
  EXPECT_THAT(ReadExportedFile(directory_, sample), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
  const auto size = static_cast<size_t>(std::filesystem::file_size(directory_ / kIndex));
  for (size_t at = 0; at < size; at += 7) {
    Change(kIndex, at);
    ASSERT_THAT(ReadExportedRun(directory_), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum)) << at;
    Change(kIndex, at);
  }
  std::filesystem::remove(directory_ / kIndex);
  EXPECT_THAT(ReadExportedRun(directory_), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
}

TEST_F(ExportedRunTest, AFolderIsNoFile) {
  for (const char* name : {"00000000.npy", kIndex, "DONE"}) {
    std::filesystem::remove_all(directory_);
    Export();
    ASSERT_OK_AND_ASSIGN(const ExportedRun run, ReadExportedRun(directory_));
    std::filesystem::remove(directory_ / name);
    std::filesystem::create_directory(directory_ / name);
    EXPECT_EQ(ReadFile(directory_ / name).status().code(), absl::StatusCode::kInternal);
    if (std::string(name) == run.samples[0].file) {
      EXPECT_THAT(ReadExportedFile(directory_, run.samples[0]), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
    } else {
      EXPECT_FALSE(ReadExportedRun(directory_).ok());
    }
  }
}

TEST_F(ExportedRunTest, APathThatCanBeNoDirectoryIsTheCallersFault) {
  ASSERT_OK(WriteNewFile(directory_, {}));
  for (const std::filesystem::path& path :
       {directory_, directory_ / "below", std::filesystem::path("/proc/nonesuch/run"),
        directory_ / std::string(300, 'x')}) {
    const auto created = RunExporter::Create(path, "run", Producer::kRollout, geometry_);
    EXPECT_EQ(created.status().code(), absl::StatusCode::kInvalidArgument) << created.status();
    const auto continued = RunExporter::Continue(path, "run", Producer::kRollout, geometry_);
    EXPECT_EQ(continued.status().code(), absl::StatusCode::kInvalidArgument) << continued.status();
  }
}

TEST_F(ExportedRunTest, AnIndexThatSaysNonsenseIsRefused) {
  const std::pair<const char*, const char*> changes[] = {
      {"\"num_tokens\":6", "\"num_tokens\":0"},
      {"\"num_tokens\":6", "\"num_tokens\":3"},
      {"\"num_tokens\":6", "\"num_tokens\":4194306"},
      {"\"num_tokens\":6", "\"num_tokens\":4611686018427387904"},
      {"\"file_bytes\":", "\"file_bytes\":99"},
      {"\"file_bytes\":", "\"file_bytes\":-"},
      {"\"released\":false", "\"released\":0"},
      {"\"generation\":1", "\"generation\":-1"},
      {"\"00000000.npy\"", "\"../secrets.npy\""},
      {"\"00000000.npy\"", "\".hidden\""},
      {"\"sample\":\"b\"", "\"sample\":\"a/0\""},
      {"\"sample\":\"b\"", "\"sample\":\"b b\""},
      {"[0,2,5,\"x\"]", "[0,2,5]"},
      {"[0,2,5,\"x\"]", "[0,6,5,\"x\"]"},
      {"[0,2,5,\"x\"]", "[2,0,5,\"x\"]"},
      {"[0,2,5,\"x\"]", "[-1,2,5,\"x\"]"},
      {"[0,2,5,\"x\"]", "[0,2,-2,\"x\"]"},
      {"[0,2,5,\"x\"]", "[0,2,18446744073709551615,\"x\"]"},
      {"\"revision\":2", "\"revision\":-2"},
      {"\"crc32c\":", "\"crc32c\":-"},
      {"\"group\":4", "\"grup\":4"},
      {"\"producer\":\"trainer\"", "\"producer\":\"nobody\""},
      {"\"num_experts\":", "\"num_experts\":0,\"x\":"},
  };
  for (const auto& [from, to] : changes) {
    std::filesystem::remove_all(directory_);
    Export();
    Rewrite(from, to);
    EXPECT_EQ(ReadExportedRun(directory_).status().code(), absl::StatusCode::kInvalidArgument) << to;
  }
  for (const char* version : {"1", "3", "\"2\""}) {
    std::filesystem::remove_all(directory_);
    Export();
    Rewrite("\"version\":2", std::string("\"version\":") + version);
    EXPECT_THAT(ReadExportedRun(directory_), Fails(absl::StatusCode::kFailedPrecondition, Reason::kVersionMismatch));
  }
}

TEST_F(ExportedRunTest, TheLargestSampleHasAnIndexEntry) {
  Export();
  Rewrite("\"num_tokens\":6", "\"num_tokens\":4194305");
  EXPECT_OK(ReadExportedRun(directory_));
}

TEST_F(ExportedRunTest, TheMarkerNamesAnIndexOrNothingIsRead) {
  Export();
  const auto marker = ReadFile(directory_ / kExportMarker);
  ASSERT_OK(marker);
  const std::string right(AsText(*marker));
  EXPECT_EQ(right.substr(0, 13), "index.1.json ");
  for (size_t at = 0; at < right.size(); ++at) {
    Change(kExportMarker, at);
    EXPECT_THAT(ReadExportedRun(directory_), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum)) << at;
    Change(kExportMarker, at);
  }
  for (const std::string& wrong : {std::string(), right + "\n", "index.01" + right.substr(7), "../" + right}) {
    Overwrite(kExportMarker, AsBytes(wrong));
    EXPECT_THAT(ReadExportedRun(directory_), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum)) << wrong;
  }
  Overwrite(kExportMarker, AsBytes("0123abcd\n"));
  EXPECT_THAT(ReadExportedRun(directory_), Fails(absl::StatusCode::kFailedPrecondition, Reason::kVersionMismatch));
}

}  // namespace
}  // namespace routing_replay
