// Exports that end at any step, and what the next one makes of what they left.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>

#include "absl/strings/match.h"
#include "proto/exported/directory_lock.h"
#include "proto/exported/exported_run.h"
#include "proto/exported/files.h"
#include "proto/exported/index_json.h"
#include "proto/exported/layout.h"
#include "proto/wire/payload/npy.h"
#include "routing_replay/wire/error_detail.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;

// Ends after so many steps, the last of them torn where it writes: what a process that is killed leaves. Waits for no
// disk.
class EndingFiles : public DurableFiles {
 public:
  explicit EndingFiles(int64_t steps) : left_(steps) {}

  absl::Status Write(const std::filesystem::path& path, absl::Span<const absl::Span<const uint8_t>> parts) override {
    if (Step()) return WriteNewFile(path, parts);
    if (left_ == -1) (void)WriteNewFile(path, {parts[0].first(parts[0].size() / 2)});
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
  absl::Status Sync(absl::Span<const std::filesystem::path>) override { return Step() ? absl::OkStatus() : Ended(); }
  absl::Status SyncDirectory(const std::filesystem::path&) override { return Step() ? absl::OkStatus() : Ended(); }

 private:
  bool Step() { return --left_ >= 0; }
  static absl::Status Ended() { return absl::InternalError("ended"); }

  int64_t left_;
};

// A machine that loses its power after so many steps: of what was not synced, names and contents, any part is lost.
class LosingFiles final : public EndingFiles {
 public:
  LosingFiles(int64_t steps, std::filesystem::path directory)
      : EndingFiles(steps), directory_(std::move(directory)), synced_(Look()) {}

  absl::Status Sync(absl::Span<const std::filesystem::path> files) override {
    if (absl::Status status = EndingFiles::Sync(files); !status.ok()) return status;
    for (const std::filesystem::path& file : files) contents_[InodeOf(file)] = *ReadFile(file);
    return absl::OkStatus();
  }
  absl::Status SyncDirectory(const std::filesystem::path& directory) override {
    if (absl::Status status = EndingFiles::SyncDirectory(directory); !status.ok()) return status;
    if (directory == directory_) synced_ = Look();
    return absl::OkStatus();
  }

  void LosePower(std::mt19937_64& random) {
    const auto now = Look();
    std::map<std::string, std::optional<std::vector<uint8_t>>> left;
    for (const auto& names : {now, synced_}) {
      for (const auto& [name, file] : names) {
        const auto& of = random() % 2 == 0 ? now : synced_;
        const auto chosen = of.find(name);
        left[name] = chosen == of.end() ? std::nullopt : std::optional(Torn(chosen->second, random));
      }
    }
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    for (const auto& [name, bytes] : left) {
      if (!bytes) continue;
      ASSERT_OK(WriteNewFile(directory_ / name, {*bytes}));
    }
  }

 private:
  struct File {
    ino_t inode = 0;
    std::shared_ptr<const int> held;  // As long as it is known, no other file gets its number.
    std::vector<uint8_t> bytes;
  };

  static ino_t InodeOf(const std::filesystem::path& path) {
    struct stat kind = {};
    EXPECT_EQ(stat(path.c_str(), &kind), 0);
    return kind.st_ino;
  }
  std::map<std::string, File> Look() {
    std::map<std::string, File> files;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(directory_, error)) {
      auto& held = held_[InodeOf(entry.path())];
      if (!held)
        held = {new int(open(entry.path().c_str(), O_RDONLY)), [](const int* file) { close(*file), delete file; }};
      files[entry.path().filename().string()] = {InodeOf(entry.path()), held, *ReadFile(entry.path())};
    }
    if (is_new_) {
      for (const auto& [name, file] : files) contents_[file.inode] = file.bytes;
    }
    is_new_ = false;
    return files;
  }
  std::vector<uint8_t> Torn(const File& file, std::mt19937_64& random) {
    const std::vector<uint8_t>& synced = contents_[file.inode];
    std::vector<uint8_t> bytes = file.bytes.size() >= synced.size() ? file.bytes : synced;
    bytes.resize(synced.size() + random() % (bytes.size() - synced.size() + 1));
    return bytes;
  }

  const std::filesystem::path directory_;
  bool is_new_ = true;
  std::map<ino_t, std::shared_ptr<const int>> held_;
  std::map<ino_t, std::vector<uint8_t>> contents_;  // As synced.
  std::map<std::string, File> synced_;
};

// What was synced, in order.
class RecordingFiles final : public DurableFiles {
 public:
  using Paths = std::vector<std::filesystem::path>;

  absl::Status Sync(absl::Span<const std::filesystem::path> files) override {
    synced.emplace_back(files.begin(), files.end());
    return DurableFiles::Sync(files);
  }
  absl::Status SyncDirectory(const std::filesystem::path& directory) override {
    synced.push_back({directory});
    return DurableFiles::SyncDirectory(directory);
  }
  std::vector<Paths> synced;
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
      absl::Status status = (*exporter)->Add({.sample = name,
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

  // Nothing but the run and the one before it is there.
  void ExpectTidy() {
    std::set<std::string> named = {kExportMarker, kExportLock};
    int indexes = 0;
    for (const auto& [name, bytes] : Snapshot()) {
      if (!IndexNumber(name)) continue;
      ++indexes;
      named.insert(name);
      const auto run = ExportedIndexFromJson(AsText(bytes));
      ASSERT_OK(run);
      for (const ExportedSample& sample : run->samples) named.insert(sample.file);
    }
    EXPECT_LE(indexes, 2);
    for (const auto& [name, bytes] : Snapshot()) EXPECT_EQ(named.count(name), 1u) << name;
  }
  // All names in the directory, with what is in the files.
  std::map<std::string, std::vector<uint8_t>> Snapshot() {
    std::map<std::string, std::vector<uint8_t>> files;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      auto bytes = ReadFile(entry.path());
      files[entry.path().filename().string()] = bytes.ok() ? *std::move(bytes) : std::vector<uint8_t>();
    }
    return files;
  }
  void Overwrite(const std::string& name, absl::Span<const uint8_t> bytes) {
    std::filesystem::remove(directory_ / name);
    ASSERT_OK(WriteNewFile(directory_ / name, {bytes}));
  }
  void Flip(const std::string& name) {
    ASSERT_OK_AND_ASSIGN(auto bytes, ReadFile(directory_ / name));
    bytes.back() ^= 1;
    Overwrite(name, bytes);
  }
  absl::Status Add(RunExporter& exporter, const std::string& name, int64_t content) {
    return exporter.Add({.sample = name, .num_tokens = 4, .content_id = static_cast<uint64_t>(content)}, Ids(content));
  }
  // Refused, and left as it is.
  void ExpectRefused(absl::StatusCode code) {
    const auto there = Snapshot();
    EXPECT_EQ(Continue().status().code(), code);
    EXPECT_EQ(Snapshot(), there);
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
      EXPECT_TRUE((first && !between) || between == after_ || (!first && between == before_)) << steps;
      ASSERT_OK(Export(after_)) << steps;
      EXPECT_EQ(Read(), after_) << steps;
      ExpectTidy();
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
  ExpectTidy();
}

TEST_F(ContinuedExportTest, WhatIsThereIsNotWrittenAgain) {
  ASSERT_OK(Export(before_));
  EXPECT_EQ(written_, 3);
  const auto time = std::filesystem::last_write_time(directory_ / kExportMarker);
  ASSERT_OK(Export(before_));
  EXPECT_EQ(written_, 3);
  EXPECT_EQ(std::filesystem::last_write_time(directory_ / kExportMarker), time);
  EndingFiles files(12);  // Some files of the next export have their names.
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
  Flip("00000000.npy");
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
}

TEST_F(ContinuedExportTest, WhatIsNotShownToBeAnExportedRunStays) {
  const std::vector<std::vector<std::string>> directories = {
      {"notes.txt"},
      {"00000000.npy", "00000001.npy"},
      {"index.json", "notes.txt", "journal", "00000000.npy"},
      {"index.3.json", "00000000.npy"},
      {"DONE", "00000000.npy"},
      {"journal"},
      {"journal.part"},
      {"lock"},
  };
  for (const std::vector<std::string>& names : directories) {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    for (const std::string& name : names) Overwrite(name, AsBytes("not ours\n"));
    ExpectRefused(absl::StatusCode::kAlreadyExists);
  }
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
  Flip("index.1.json");
  EXPECT_THAT(Continue(), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
  ExpectRefused(absl::StatusCode::kDataLoss);
}

TEST_F(ContinuedExportTest, AnotherVersionIsNotWrittenOver) {
  ASSERT_OK(Export(before_));
  std::string index(AsText(*ReadFile(directory_ / "index.1.json")));
  index.replace(index.find("\"version\":2"), 11, "\"version\":3");
  Overwrite("index.1.json", AsBytes(index));
  std::filesystem::remove(directory_ / kExportMarker);
  EXPECT_THAT(Continue(), Fails(absl::StatusCode::kFailedPrecondition, Reason::kVersionMismatch));
  ExpectRefused(absl::StatusCode::kFailedPrecondition);
}

TEST_F(ContinuedExportTest, WithoutAMarkerAFileThatAnIndexNamesIsMissedNotForgotten) {
  ASSERT_OK(Export(before_));
  std::filesystem::remove(directory_ / kExportMarker);
  Flip("00000001.npy");
  {
    ASSERT_OK_AND_ASSIGN(const auto exporter, Continue());
    EXPECT_EQ(exporter->Find("b"), nullptr);
    EXPECT_EQ(exporter->damaged(), std::set<std::string>{"b"});
    const absl::Status missed = exporter->Finish();
    EXPECT_THAT(missed, Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
    EXPECT_EQ(GetErrorDetail(missed)->sample, "b");
  }
  // All others can be read, and this one, too, once its file is brought back.
  ASSERT_OK_AND_ASSIGN(const ExportedRun run, ReadExportedRun(directory_));
  EXPECT_EQ(run.samples.size(), 3u);
  Flip("00000001.npy");
  EXPECT_EQ(Read(), before_);
}

TEST_F(ContinuedExportTest, ADamagedFileDoesNotKeepTheOthersOut) {
  ASSERT_OK(Export(before_));
  std::filesystem::remove(directory_ / "00000002.npy");
  {
    ASSERT_OK_AND_ASSIGN(const auto exporter, Continue());
    ASSERT_OK(Add(*exporter, "d", 8));
    EXPECT_THAT(exporter->Finish(), Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
  }
  ASSERT_OK_AND_ASSIGN(const ExportedRun run, ReadExportedRun(directory_));
  ASSERT_EQ(run.samples.size(), 4u);
  EXPECT_EQ(run.samples[3].sample, "d");
  // The number that is named stays the file's.
  EXPECT_EQ(run.samples[3].file, "00000003.npy");
  EXPECT_OK(ReadExportedFile(directory_, run.samples[3]));
}

TEST_F(ContinuedExportTest, WhatOnlyTheDirectoryHasOutlivesEveryStop) {
  bool ended_well = false;
  for (int64_t steps = 0; !ended_well; ++steps) {
    ASSERT_LT(steps, 100);
    std::filesystem::remove_all(directory_);
    ASSERT_OK(Export(before_));
    {
      EndingFiles files(steps);
      const auto exporter = Continue(files);
      absl::Status status = exporter.status();
      if (status.ok()) status = Add(**exporter, "a", 7);
      if (status.ok()) status = Add(**exporter, "d", 8);
      if (status.ok()) status = (*exporter)->Finish();
      ended_well = status.ok();
    }
    ASSERT_OK_AND_ASSIGN(const auto exporter, Continue());
    ASSERT_OK(exporter->Finish());
    auto contents = Read();
    ASSERT_TRUE(contents) << steps;
    EXPECT_TRUE((*contents)["a"] == before_.at("a") || (*contents)["a"].content == 7) << steps;
    for (const char* name : {"b", "c"}) EXPECT_EQ((*contents)[name], before_.at(name)) << steps;
    EXPECT_TRUE(!ended_well || contents->count("d") == 1);
  }
}

TEST_F(ContinuedExportTest, AMachineThatLosesItsPowerLosesNoExport) {
  std::mt19937_64 random(9);
  for (const bool first : {true, false}) {
    bool ended_well = false;
    for (int64_t steps = 0; !ended_well; ++steps) {
      ASSERT_LT(steps, 100);
      for (int round = 0; round < 5; ++round) {
        std::filesystem::remove_all(directory_);
        std::filesystem::create_directories(directory_);
        if (!first) {
          ASSERT_OK(Export(before_));
        }
        LosingFiles files(steps, directory_);
        ended_well = Export(after_, files).ok();
        files.LosePower(random);
        const auto between = Read();
        if (ended_well) {
          EXPECT_EQ(between, after_) << steps;
        }
        EXPECT_TRUE((first && !between) || between == after_ || (!first && between == before_)) << steps;
        ASSERT_OK(Export(after_)) << steps;
        EXPECT_EQ(Read(), after_) << steps;
      }
    }
  }
}

TEST_F(ContinuedExportTest, AReaderFindsItsFilesUntilTheSecondExportAfter) {
  const auto readable = [this](const ExportedRun& run) {
    return std::all_of(run.samples.begin(), run.samples.end(),
                       [this](const ExportedSample& sample) { return ReadExportedFile(directory_, sample).ok(); });
  };
  ASSERT_OK(Export({{"a", {1, 0}}, {"b", {1, 0}}}));
  ASSERT_OK_AND_ASSIGN(const ExportedRun reader, ReadExportedRun(directory_));
  ASSERT_OK(Export({{"a", {2, 0}}}));
  EXPECT_TRUE(readable(reader));
  ASSERT_OK(Export({{"a", {2, 0}}}));  // Nothing changed.
  EXPECT_TRUE(readable(reader));
  EXPECT_TRUE(std::filesystem::exists(directory_ / "index.1.json"));
  ASSERT_OK(Export({{"a", {3, 0}}}));
  EXPECT_FALSE(readable(reader));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "index.1.json"));
  ExpectTidy();
}

TEST_F(ContinuedExportTest, LinksAreNotFollowed) {
  ASSERT_OK(Export(before_));
  const std::filesystem::path victim = directory_.string() + "_victim";
  ASSERT_OK(WriteNewFile(victim, {AsBytes("precious")}));
  for (const char* name : {kIndexPart, kMarkerPart, kJournalPart, "index.2.json", "00000003.npy"}) {
    std::filesystem::create_symlink(victim, directory_ / name);
  }
  ASSERT_OK(Export(after_));
  EXPECT_EQ(Read(), after_);
  EXPECT_EQ(AsText(*ReadFile(victim)), "precious");
  EXPECT_TRUE(std::filesystem::is_symlink(directory_ / "00000003.npy"));
  std::filesystem::remove(victim);
}

TEST_F(ContinuedExportTest, OtherFilesStay) {
  ASSERT_OK(Export(before_));
  std::filesystem::create_directories(directory_ / "00000009.npy" / "inner");
  Overwrite("00000005.npy", AsBytes("somebody's"));
  Overwrite("index.json", AsBytes("somebody's"));
  ASSERT_OK(Export(after_));
  ASSERT_OK(Export(before_));
  ASSERT_OK(Export(after_));
  EXPECT_EQ(Read(), after_);
  EXPECT_TRUE(std::filesystem::exists(directory_ / "00000009.npy" / "inner"));
  for (const char* name : {"00000005.npy", "index.json"}) EXPECT_EQ(AsText(*ReadFile(directory_ / name)), "somebody's");
}

TEST_F(ContinuedExportTest, AFileOfSomebodyElseIsNotWrittenOver) {
  ASSERT_OK_AND_ASSIGN(const auto exporter, Continue());
  Overwrite("00000000.npy", AsBytes("somebody's"));
  EXPECT_EQ(Add(*exporter, "a", 1).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(AsText(*ReadFile(directory_ / "00000000.npy")), "somebody's");
  ASSERT_OK(Add(*exporter, "a", 1));
  ASSERT_OK(exporter->Finish());
  EXPECT_EQ(Read(), (Contents{{"a", {1, 0}}}));
}

TEST_F(ContinuedExportTest, FilesAreSyncedTogetherAndTheNamesThatLeadToThem) {
  const std::filesystem::path inner = directory_ / "x" / "y";
  RecordingFiles files;
  {
    ASSERT_OK_AND_ASSIGN(const auto exporter,
                         RunExporter::Continue(inner, "run", Producer::kRollout, geometry_, files));
    for (const std::filesystem::path& parent : {directory_.parent_path(), directory_, directory_ / "x"}) {
      EXPECT_EQ(std::count(files.synced.begin(), files.synced.end(), RecordingFiles::Paths{parent}), 1) << parent;
    }
    for (int64_t i = 0; i < 20; ++i) ASSERT_OK(Add(*exporter, std::string(1, static_cast<char>('a' + i)), i));
    files.synced.clear();
    ASSERT_OK(exporter->Finish());
  }
  ASSERT_EQ(files.synced.size(), 5u);
  EXPECT_EQ(files.synced[0].size(), 20u);
  EXPECT_EQ(files.synced[1], RecordingFiles::Paths{inner / kIndexPart});
  EXPECT_EQ(files.synced[2], RecordingFiles::Paths{inner});
  EXPECT_EQ(files.synced[3], RecordingFiles::Paths{inner / kMarkerPart});
  EXPECT_EQ(files.synced[4], RecordingFiles::Paths{inner});
  // Nothing is new, but the export before need not have come to its last sync.
  ASSERT_OK_AND_ASSIGN(const auto exporter, RunExporter::Continue(inner, "run", Producer::kRollout, geometry_, files));
  files.synced.clear();
  ASSERT_OK(exporter->Finish());
  EXPECT_EQ(files.synced, std::vector<RecordingFiles::Paths>{{inner}});
}

TEST_F(ContinuedExportTest, FilesOfAnUnfinishedExportAreSynced) {
  {
    ASSERT_OK_AND_ASSIGN(const auto exporter, Continue());
    ASSERT_OK(Add(*exporter, "a", 1));
  }
  RecordingFiles files;
  ASSERT_OK_AND_ASSIGN(const auto exporter, Continue(files));
  files.synced.clear();
  ASSERT_OK(exporter->Finish());
  EXPECT_EQ(files.synced[0], RecordingFiles::Paths{directory_ / "00000000.npy"});
}

TEST_F(ContinuedExportTest, AFileIsCheckedBeforeItIsTrusted) {
  ASSERT_OK(Export(before_));
  Flip("00000001.npy");
  ASSERT_OK_AND_ASSIGN(const auto exporter, Continue());
  EXPECT_OK(exporter->CheckFile("a"));
  EXPECT_EQ(exporter->CheckFile("z").code(), absl::StatusCode::kNotFound);
  ASSERT_NE(exporter->Find("b"), nullptr);
  const absl::Status rotten = exporter->CheckFile("b");
  EXPECT_THAT(rotten, Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
  EXPECT_EQ(GetErrorDetail(rotten)->sample, "b");
  EXPECT_EQ(exporter->Find("b"), nullptr);
  ASSERT_OK(Add(*exporter, "b", 2));
  EXPECT_OK(exporter->CheckFile("b"));
  EXPECT_OK(exporter->Finish());
  EXPECT_EQ(Read(), before_);
}

TEST_F(ContinuedExportTest, ReleasedSamplesStay) {
  ASSERT_OK(Export(before_));
  {
    ASSERT_OK_AND_ASSIGN(const auto exporter, Continue());
    exporter->SetReleased("b", true);
    exporter->SetReleased("c", true);
    ASSERT_OK(exporter->Finish());
  }
  {
    ASSERT_OK_AND_ASSIGN(const auto exporter, Continue());
    EXPECT_TRUE(exporter->Find("b")->released);
    ASSERT_OK(Add(*exporter, "c", 5));  // Another content, which the run has.
    EXPECT_EQ(exporter->DropIf([](const ExportedSample&) { return true; }), 2);
    ASSERT_OK(exporter->Finish());
  }
  ASSERT_OK_AND_ASSIGN(const ExportedRun run, ReadExportedRun(directory_));
  ASSERT_EQ(run.samples.size(), 1u);
  EXPECT_EQ(run.samples[0].sample, "b");
  EXPECT_TRUE(run.samples[0].released);
}

}  // namespace
}  // namespace routing_replay
