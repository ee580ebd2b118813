// Tests that a run is written and read back, that every kind of damage to a directory is detected, and how exports that
// ended early are handled.
#include "proto/exported/exported_run.h"

#include <sys/stat.h>

#include <fstream>
#include <random>

#include "proto/wire/payload/npy.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using ::testing::ElementsAre;
using testing::Fails;
using ::testing::HasSubstr;

class ExportedRunTest : public ::testing::Test {
 protected:
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
  static std::string Read(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void Write(const std::filesystem::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  void Change(const std::string& file, size_t at) {
    std::string bytes = Read(directory_ / file);
    bytes[at] ^= 1;
    Write(directory_ / file, bytes);
  }
  // Changes the index, and makes its CRC match.
  void Rewrite(const std::string& from, const std::string& to) {
    std::string index = Read(directory_ / kExportIndex);
    const size_t at = index.find(from);
    ASSERT_NE(at, std::string::npos) << index;
    index.replace(at, from.size(), to);
    index.resize(index.rfind('\n', index.size() - 2) + 1);
    const uint32_t crc = Crc32c({reinterpret_cast<const uint8_t*>(index.data()), index.size()});
    char last[32];
    snprintf(last, sizeof(last), "\"crc32c\":\"%08x\"}\n", crc);
    Write(directory_ / kExportIndex, index + last);
  }
  std::filesystem::path Part() const { return std::filesystem::path(directory_) += ".part"; }

  const Geometry geometry_ = Geometry::Uniform(2, 8, 2);
  const testing::ScratchDirectory scratch_;
  const std::filesystem::path directory_ = std::filesystem::path(scratch_.path()) / "below" / "run";
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
  EXPECT_FALSE(std::filesystem::exists(Part()));
}

TEST_F(ExportedRunTest, WidthAndKAreThoseOfTheLargestLayer) {
  const auto geometry =
      Geometry::Create({.num_layers = 2, .moe_layer_ids = {0, 1}, .num_experts = {8, 300}, .top_k = {2, 3}});
  ASSERT_OK(geometry);
  const auto exporter = NewExporter(*geometry);
  EXPECT_OK(exporter->Add({.sample = "a", .num_tokens = 5}, Ids(4 * 2 * 3 * 2)));
  ASSERT_OK(exporter->Finish());
  ASSERT_OK_AND_ASSIGN(const ExportedRun run, ReadExportedRun(directory_));
  EXPECT_EQ(*ReadExportedIds(directory_, run.geometry, run.samples[0]), Ids(4 * 2 * 3 * 2));
}

TEST_F(ExportedRunTest, EveryChangedByteIsFound) {
  Export();
  ASSERT_OK_AND_ASSIGN(const ExportedRun run, ReadExportedRun(directory_));
  const ExportedSample& sample = run.samples[0];
  for (int64_t at = 0; at < sample.file_bytes; at += 3) {
    Change(sample.file, at);
    const auto rejected = ReadExportedFile(directory_, sample);
    ASSERT_THAT(rejected, Fails(absl::StatusCode::kDataLoss, Reason::kChecksum)) << at;
    EXPECT_EQ(GetErrorDetail(rejected.status())->sample, "a/0");
    Change(sample.file, at);
  }
  std::filesystem::remove(directory_ / sample.file);
  EXPECT_THAT(ReadExportedFile(directory_, sample), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
  const std::string index = Read(directory_ / kExportIndex);
  for (size_t at = 0; at < index.size(); ++at) {
    Change(kExportIndex, at);
    ASSERT_THAT(ReadExportedRun(directory_), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum)) << at;
    Change(kExportIndex, at);
  }
  for (const std::string& wrong : {std::string(), index + "\n", index.substr(1), index.substr(0, 40)}) {
    Write(directory_ / kExportIndex, wrong);
    EXPECT_THAT(ReadExportedRun(directory_), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum)) << wrong;
  }
  std::filesystem::remove(directory_ / kExportIndex);
  EXPECT_THAT(ReadExportedRun(directory_), Fails(absl::StatusCode::kFailedPrecondition, Reason::kNotCommitted));
}

TEST_F(ExportedRunTest, AFolderIsNotAFile) {
  for (const std::string name : {"00000000.npy", kExportIndex}) {
    std::filesystem::remove_all(directory_);
    Export();
    ASSERT_OK_AND_ASSIGN(const ExportedRun run, ReadExportedRun(directory_));
    std::filesystem::remove(directory_ / name);
    std::filesystem::create_directory(directory_ / name);
    if (name == run.samples[0].file) {
      EXPECT_THAT(ReadExportedFile(directory_, run.samples[0]), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
    } else {
      EXPECT_THAT(ReadExportedRun(directory_), Fails(absl::StatusCode::kFailedPrecondition, Reason::kNotCommitted));
    }
  }
}

TEST_F(ExportedRunTest, AnIndexThatSaysNonsenseIsRejected) {
  const std::pair<const char*, const char*> changes[] = {
      {"\"num_tokens\":6", "\"num_tokens\":0"},
      {"\"num_tokens\":6", "\"num_tokens\":3"},
      {"\"num_tokens\":6", "\"num_tokens\":4194306"},
      {"\"num_tokens\":6", "\"num_tokens\":4611686018427387904"},
      {"\"file_bytes\":", "\"file_bytes\":99"},
      {"\"file_bytes\":", "\"file_bytes\":-"},
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

TEST_F(ExportedRunTest, APathThatCanBeNoDirectoryIsNamed) {
  const std::filesystem::path file = scratch_.path() + "/file";
  Write(file, "");
  for (const std::filesystem::path& path : {file, file / "below", std::filesystem::path("/proc/nonesuch/run"),
                                            file.parent_path() / std::string(300, 'x')}) {
    const auto created = RunExporter::Create(path, "run", Producer::kRollout, geometry_);
    EXPECT_NE(created.status().code(), absl::StatusCode::kInternal) << created.status();
    EXPECT_THAT(created.status().message(), HasSubstr(path.string()));
  }
}

TEST_F(ExportedRunTest, OnlyANewOrEmptyDirectoryIsWritten) {
  std::filesystem::create_directories(directory_);
  Export();
  const std::string before = Read(directory_ / kExportIndex);
  EXPECT_EQ(RunExporter::Create(directory_, "run", Producer::kRollout, geometry_).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(RunExporter::Create(directory_.string() + "/", "run", Producer::kRollout, geometry_).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Read(directory_ / kExportIndex), before);
}

TEST_F(ExportedRunTest, AnExportThatWasNotFinishedLeavesNothing) {
  {
    const auto exporter = NewExporter(geometry_);
    ASSERT_OK(exporter->Add({.sample = "a", .num_tokens = 4}, Ids(12)));
    EXPECT_TRUE(std::filesystem::exists(Part() / "00000000.npy"));
    EXPECT_FALSE(std::filesystem::exists(directory_));
  }
  EXPECT_FALSE(std::filesystem::exists(Part()));
}

// A killed process may leave any of the files, the last one truncated.
TEST_F(ExportedRunTest, WhatAKilledExportLeftIsRemovedByTheNext) {
  for (const std::vector<const char*>& left : std::vector<std::vector<const char*>>{
           {}, {"00000000.npy"}, {"00000000.npy", "123456789.npy"}, {"00000000.npy", "index.json"}}) {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(Part());
    for (const char* name : left) Write(Part() / name, "cut");
    EXPECT_THAT(ReadExportedRun(directory_), Fails(absl::StatusCode::kFailedPrecondition, Reason::kNotCommitted));
    Export();
    ASSERT_OK_AND_ASSIGN(const ExportedRun run, ReadExportedRun(directory_));
    for (const ExportedSample& sample : run.samples) EXPECT_OK(ReadExportedFile(directory_, sample));
    EXPECT_FALSE(std::filesystem::exists(Part()));
  }
}

TEST_F(ExportedRunTest, FilesOfSomebodyElseAreNotRemoved) {
  for (const char* name : {"notes.txt", "1.npy", "0000000x.npy", "index.json.bak"}) {
    std::filesystem::create_directories(Part());
    Write(Part() / "00000000.npy", "cut");
    Write(Part() / name, "mine");
    EXPECT_EQ(RunExporter::Create(directory_, "run", Producer::kRollout, geometry_).status().code(),
              absl::StatusCode::kAlreadyExists);
    EXPECT_EQ(Read(Part() / name), "mine");
    EXPECT_EQ(Read(Part() / "00000000.npy"), "cut");
    std::filesystem::remove_all(Part());
  }
}

TEST_F(ExportedRunTest, WhatIsTakenFromAnotherExportIsALink) {
  Export();
  ASSERT_OK_AND_ASSIGN(const ExportedRun before, ReadExportedRun(directory_));
  const std::filesystem::path next = directory_.parent_path() / "next";
  auto exporter = *RunExporter::Create(next, "run", Producer::kTrainer, geometry_);
  ASSERT_OK(exporter->Add({.sample = "c", .num_tokens = 4}, Ids(12)));
  ExportedSample moved = before.samples[0];
  moved.group = 9;
  ASSERT_OK(exporter->Take(directory_, moved));
  std::filesystem::resize_file(directory_ / before.samples[1].file, 3);
  const absl::Status cut = exporter->Take(directory_, before.samples[1]);
  EXPECT_THAT(cut, Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
  EXPECT_EQ(GetErrorDetail(cut)->sample, "b");
  ASSERT_OK(exporter->Finish());
  ASSERT_OK_AND_ASSIGN(const ExportedRun run, ReadExportedRun(next));
  ASSERT_EQ(run.samples.size(), 2u);
  EXPECT_EQ(run.samples[1].group, 9);
  EXPECT_EQ(run.samples[1].crc32c, before.samples[0].crc32c);
  struct stat kind = {};
  ASSERT_EQ(stat((next / run.samples[1].file).c_str(), &kind), 0);
  EXPECT_EQ(kind.st_nlink, 2u);
  std::filesystem::remove_all(directory_);
  EXPECT_OK(ReadExportedFile(next, run.samples[1]));
}

}  // namespace
}  // namespace routing_replay
