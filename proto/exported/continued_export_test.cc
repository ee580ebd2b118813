// Exports that end at any step, and what the next one makes of what they left.
#include <algorithm>
#include <map>
#include <random>

#include "absl/strings/match.h"
#include "proto/exported/exported_run.h"
#include "proto/exported/files.h"
#include "proto/exported/found_run.h"
#include "proto/wire/payload/npy.h"
#include "routing_replay/wire/error_detail.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;

// Ends after so many steps, the last of them torn where it writes: what a process that is killed leaves. Waits for no
// disk.
class EndingFiles final : public DurableFiles {
 public:
  explicit EndingFiles(int64_t steps) : left_(steps) {}

  absl::Status Write(const std::filesystem::path& path, absl::Span<const absl::Span<const uint8_t>> parts) override {
    if (Step()) return WriteFile(path, parts);
    if (left_ == -1) (void)WriteFile(path, {parts[0].first(parts[0].size() / 2)});
    return Ended();
  }
  absl::Status Append(const std::filesystem::path& path, absl::Span<const uint8_t> bytes) override {
    if (Step()) return DurableFiles::Append(path, bytes);
    if (left_ == -1) (void)DurableFiles::Append(path, bytes.first(bytes.size() / 2));
    return Ended();
  }
  absl::Status Rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    return Step() ? DurableFiles::Rename(from, to) : Ended();
  }
  absl::Status Remove(const std::filesystem::path& path) override {
    return Step() ? DurableFiles::Remove(path) : Ended();
  }
  absl::Status SyncDirectory(const std::filesystem::path&) override { return absl::OkStatus(); }

 private:
  bool Step() { return --left_ >= 0; }
  static absl::Status Ended() { return absl::InternalError("ended"); }

  int64_t left_;
};

struct Version {
  int64_t content = 0;
  int64_t group = 0;
  friend bool operator==(const Version&, const Version&) = default;
};
using Contents = std::map<std::string, Version>;

class ContinuedExportTest : public ::testing::Test {
 protected:
  ~ContinuedExportTest() override { std::filesystem::remove_all(directory_); }

  static std::vector<uint8_t> Ids(int64_t content) {
    std::vector<uint8_t> ids(3 * 2 * 2);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint8_t>((content * 5 + static_cast<int64_t>(i)) % 8);
    return ids;
  }

  absl::StatusOr<std::unique_ptr<RunExporter>> Continue(DurableFiles& files = DurableFiles::Real()) {
    return RunExporter::Continue(directory_, "run", Producer::kRollout, geometry_, files);
  }

  // Brings the directory to `wanted`; counts what it wrote.
  absl::Status Export(const Contents& wanted) {
    EndingFiles never(INT64_MAX);
    return Export(wanted, never);
  }
  absl::Status Export(const Contents& wanted, DurableFiles& files) {
    auto exporter = Continue(files);
    if (!exporter.ok()) return exporter.status();
    for (const auto& [name, version] : wanted) {
      const ExportedSample* there = (*exporter)->Find(name);
      if (there != nullptr && there->content_id == static_cast<uint64_t>(version.content)) {
        (*exporter)->SetGroup(name, version.group);
        continue;
      }
      const absl::Status status = (*exporter)->Add({.sample = name,
                                                    .group = version.group,
                                                    .num_tokens = 4,
                                                    .content_id = static_cast<uint64_t>(version.content)},
                                                   Ids(version.content));
      if (!status.ok()) return status;
      ++written_;
    }
    (*exporter)->DropIf([&](const ExportedSample& sample) { return wanted.count(sample.sample) == 0; });
    return (*exporter)->Finish();
  }

  // What can be read, every file of it checked; nothing if no export has ended.
  std::optional<Contents> Read() {
    const auto run = ReadExportedRun(directory_);
    if (!run.ok()) {
      EXPECT_THAT(run, Fails(absl::StatusCode::kFailedPrecondition, Reason::kNotCommitted));
      return std::nullopt;
    }
    Contents contents;
    for (const ExportedSample& sample : run->samples) {
      const auto content = static_cast<int64_t>(sample.content_id);
      contents[sample.sample] = {content, sample.group};
      const auto file = ReadExportedFile(directory_, sample);
      EXPECT_OK(file);
      if (!file.ok()) continue;
      const auto header = ParseNpyHeader(*file);
      EXPECT_OK(header);
      EXPECT_EQ(std::vector<uint8_t>(file->begin() + header->data_offset, file->end()), Ids(content));
    }
    return contents;
  }

  // Nothing but the run is there.
  void ExpectTidy(const Contents& contents) {
    size_t rows = 0;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      const std::string name = entry.path().filename().string();
      EXPECT_FALSE(absl::EndsWith(name, ".part")) << name;
      EXPECT_NE(name, kExportJournal);
      rows += IsExportFileName(name);
    }
    EXPECT_EQ(rows, contents.size());
  }

  const Geometry geometry_ = Geometry::Uniform(2, 8, 2);
  const std::filesystem::path directory_ =
      std::filesystem::path(::testing::TempDir()) / ("continued_export_" + std::to_string(std::random_device()()));
  const Contents before_ = {{"a", {1, 0}}, {"b", {2, 0}}, {"c", {3, 1}}};
  const Contents after_ = {{"a", {7, 2}}, {"b", {2, 4}}, {"d", {8, 1}}, {"e", {9, 1}}};
  int64_t written_ = 0;
};

TEST_F(ContinuedExportTest, AnExportThatEndsAtAnyStepIsContinued) {
  for (const bool first : {true, false}) {
    bool ended_well = false;
    for (int64_t steps = 0; !ended_well; ++steps) {
      ASSERT_LT(steps, 100);
      std::filesystem::remove_all(directory_);
      if (!first) {
        ASSERT_OK(Export(before_));
      }
      EndingFiles files(steps);
      ended_well = Export(after_, files).ok();
      const auto between = Read();
      EXPECT_TRUE(!between || *between == after_ || (!first && *between == before_)) << steps;
      ASSERT_OK(Export(after_)) << steps;
      EXPECT_EQ(Read(), after_) << steps;
      ExpectTidy(after_);
    }
  }
}

TEST_F(ContinuedExportTest, AnExportBeforeIsReadableUntilTheIndexChanges) {
  ASSERT_OK(Export(before_));
  ASSERT_OK_AND_ASSIGN(const auto exporter, Continue());
  ASSERT_OK(exporter->Add({.sample = "a", .num_tokens = 4, .content_id = 7}, Ids(7)));
  exporter->DropIf([](const ExportedSample& sample) { return sample.sample == "b"; });
  EXPECT_EQ(Read(), before_);
}

TEST_F(ContinuedExportTest, ManyExportsThatEndSomewhere) {
  std::mt19937_64 random(8);
  Contents wanted;
  for (int round = 0; round < 60; ++round) {
    for (int change = 0; change < 3; ++change) {
      const std::string name(1, static_cast<char>('a' + random() % 6));
      if (random() % 4 == 0) {
        wanted.erase(name);
      } else {
        wanted[name] = {static_cast<int64_t>(random() % 100 + 1), static_cast<int64_t>(random() % 3)};
      }
    }
    EndingFiles files(static_cast<int64_t>(random() % 40));
    const bool ended_well = Export(wanted, files).ok();
    const auto readable = Read();
    EXPECT_TRUE(!ended_well || readable == wanted) << round;
  }
  ASSERT_OK(Export(wanted));
  EXPECT_EQ(Read(), wanted);
  ExpectTidy(wanted);
}

TEST_F(ContinuedExportTest, WhatIsThereIsNotWrittenAgain) {
  ASSERT_OK(Export(before_));
  EXPECT_EQ(written_, 3);
  const auto time = std::filesystem::last_write_time(directory_ / kExportIndex);
  ASSERT_OK(Export(before_));
  EXPECT_EQ(written_, 3);
  EXPECT_EQ(std::filesystem::last_write_time(directory_ / kExportIndex), time);
  EndingFiles files(10);  // Some files of the next export have their names.
  EXPECT_FALSE(Export(after_, files).ok());
  const int64_t before_end = written_;
  EXPECT_GT(before_end, 3);
  ASSERT_OK(Export(after_));
  EXPECT_EQ(written_, 3 + 3);
}

TEST_F(ContinuedExportTest, FilesOfAnUnfinishedExportAreChecked) {
  {
    ASSERT_OK_AND_ASSIGN(const auto exporter, Continue());
    ASSERT_OK(exporter->Add({.sample = "a", .num_tokens = 4, .content_id = 1}, Ids(1)));
    ASSERT_OK(exporter->Add({.sample = "b", .num_tokens = 4, .content_id = 2}, Ids(2)));
  }
  ASSERT_OK_AND_ASSIGN(auto bytes, ReadFile(directory_ / "00000000.npy"));
  bytes.back() ^= 1;
  ASSERT_OK(WriteFile(directory_ / "00000000.npy", {bytes}));
  ASSERT_OK_AND_ASSIGN(const auto exporter, Continue());
  EXPECT_EQ(exporter->Find("a"), nullptr);
  ASSERT_NE(exporter->Find("b"), nullptr);
  EXPECT_EQ(exporter->Find("b")->content_id, 2u);
}

TEST_F(ContinuedExportTest, AFileThatIsGoneIsWrittenAgainOrMissed) {
  ASSERT_OK(Export(before_));
  std::filesystem::resize_file(directory_ / "00000001.npy", 5);
  {
    ASSERT_OK_AND_ASSIGN(const auto exporter, Continue());
    EXPECT_EQ(exporter->Find("b"), nullptr);
    const absl::Status missed = exporter->Finish();
    EXPECT_THAT(missed, Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
    EXPECT_EQ(GetErrorDetail(missed)->sample, "b");
  }
  ASSERT_OK(Export(before_));
  EXPECT_EQ(Read(), before_);
}

TEST_F(ContinuedExportTest, AnotherRunOrAnythingElseStays) {
  ASSERT_OK(Export(before_));
  EXPECT_THAT(RunExporter::Continue(directory_, "other", Producer::kRollout, geometry_),
              Fails(absl::StatusCode::kFailedPrecondition, Reason::kField));
  EXPECT_THAT(RunExporter::Continue(directory_, "run", Producer::kTrainer, geometry_),
              Fails(absl::StatusCode::kFailedPrecondition, Reason::kField));
  EXPECT_THAT(RunExporter::Continue(directory_, "run", Producer::kRollout, Geometry::Uniform(2, 16, 2)),
              Fails(absl::StatusCode::kFailedPrecondition, Reason::kGeometryMismatch));
  EXPECT_EQ(Read(), before_);
  std::filesystem::remove_all(directory_);
  std::filesystem::create_directories(directory_);
  ASSERT_OK(WriteFile(directory_ / "notes.txt", {}));
  EXPECT_EQ(Continue().status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(ContinuedExportTest, OneAtATime) {
  {
    ASSERT_OK_AND_ASSIGN(const auto exporter, Continue());
    EXPECT_EQ(Continue().status().code(), absl::StatusCode::kAborted);
  }
  EXPECT_OK(Continue());
}

TEST_F(ContinuedExportTest, ADamagedIndexIsNotWrittenOver) {
  ASSERT_OK(Export(before_));
  ASSERT_OK_AND_ASSIGN(auto bytes, ReadFile(directory_ / kExportIndex));
  bytes[bytes.size() / 2] ^= 1;
  ASSERT_OK(WriteFile(directory_ / kExportIndex, {bytes}));
  EXPECT_THAT(Continue(), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
}

}  // namespace
}  // namespace routing_replay
