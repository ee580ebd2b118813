// Exports runs to directories and imports them, against a server: the imported rows must be the exported ones, bit for
// bit.
#include "routing_replay/checkpoint.h"

#include <atomic>
#include <fstream>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/source.h"
#include "routing_replay/wire/checksum.h"
#include "tests/integration/fixture.h"

namespace routing_replay::testing {
namespace {

TokenCheck CheckOf(const std::vector<uint32_t>& tokens, int64_t rows) {
  return {rows, TokenCheckExtend(0, AsBytes(tokens).first(static_cast<size_t>(rows) * sizeof(uint32_t)))};
}

class CheckpointTest : public ServerTest {
 protected:
  void SetUp() override { StartServer(); }
  ~CheckpointTest() override { std::filesystem::remove_all(directory_); }

  // Appends one sample in two parts, with unrecorded rows, a weight version for each part, and a token check.
  void Fill(routing_replay::Run& run, const std::string& sample, int64_t tokens, uint64_t seed, int64_t group,
            const std::vector<RowRange>& unrecorded) {
    const RandomRoutes routes = MakeRandomRoutes(run.geometry(), tokens - 1, seed);
    const std::vector<uint32_t> ids = MakeTokens(tokens, seed);
    const int64_t half = (tokens - 1) / 2;
    auto appender = run.NewAppender();
    for (const RowRange part : {RowRange{0, half}, RowRange{half, tokens - 1}}) {
      std::vector<int32_t> tensor;
      for (const RowRange recorded : Subtract(part, unrecorded)) {
        const std::vector<int32_t> more = routes.Tensor(recorded);
        tensor.insert(tensor.end(), more.begin(), more.end());
      }
      AppendOptions options{.sample = sample,
                            .row_start = part.begin,
                            .unrecorded = Clip(unrecorded, part),
                            .group = group,
                            .weight_version = static_cast<int64_t>(seed) + part.begin,
                            .weight_label = part.begin == 0 ? "" : "late",
                            .token_ids = absl::MakeConstSpan(ids).subspan(part.begin, part.size())};
      if (part.end == tokens - 1) options.seal_num_tokens = tokens;
      const int64_t recorded = part.size() - TotalRows(options.unrecorded);
      ASSERT_OK(appender->Append(options, Int32Tensor(run.geometry(), recorded), AsBytes(tensor)));
    }
    ASSERT_OK(appender->Flush(kCallTimeout));
  }

  // Appends samples of several groups: some with unrecorded rows, one without rows, one that forks another, and one
  // that is not sealed.
  void FillRun(routing_replay::Run& run) {
    Fill(run, "long", 1500, 1, 3, {{100, 120}, {700, 900}});
    Fill(run, "s/1", 40, 2, 3, {});
    Fill(run, "s/2", 2, 3, 4, {});
    Fill(run, "gap", 9, 4, 5, {{0, 8}});
    ASSERT_OK(run.PutUnrecorded({.sample = "empty", .group = 5, .seal_num_tokens = 1}, 0));
    auto appender = run.NewAppender();
    const RandomRoutes routes = MakeRandomRoutes(run.geometry(), 50, 9);
    const std::vector<int32_t> tensor = routes.Tensor({30, 50});
    ASSERT_OK(appender->Append({.sample = "fork",
                                .row_start = 30,
                                .group = 4,
                                .seal = true,
                                .prefix_sample = "s/1",
                                .prefix_rows = 30,
                                .prefix_revision = 0},
                               Int32Tensor(run.geometry(), 20), AsBytes(tensor)));
    ASSERT_OK(appender->Append({.sample = "open", .group = 3}, Int32Tensor(run.geometry(), 50),
                               AsBytes(routes.Tensor({0, 50}))));
    ASSERT_OK(appender->Flush(kCallTimeout));
  }

  static constexpr int64_t kSealed = 6;

  // Expects that every sealed sample has the same rows, unrecorded rows, weights, group, seal and token check in both
  // runs.
  static void ExpectSame(routing_replay::Run& a, routing_replay::Run& b) {
    ASSERT_OK_AND_ASSIGN(const std::vector<SampleState> samples, a.List());
    int64_t sealed = 0;
    for (const SampleState& listed : samples) {
      if (!listed.sealed()) continue;
      ++sealed;
      SCOPED_TRACE(listed.sample);
      ASSERT_OK_AND_ASSIGN(const SampleState state, a.Stat(listed.sample));
      ASSERT_OK_AND_ASSIGN(const SampleState copy, b.Stat(listed.sample));
      EXPECT_EQ(copy.num_tokens, state.num_tokens);
      EXPECT_EQ(copy.group, state.group);
      EXPECT_EQ(copy.unrecorded, state.unrecorded);
      EXPECT_EQ(copy.weights, state.weights);
      EXPECT_EQ(copy.token_check, state.token_check);
      ASSERT_OK_AND_ASSIGN(const auto rows, a.ReadRows({.samples = {{.sample = listed.sample}}}, kCallTimeout));
      ASSERT_OK_AND_ASSIGN(const auto copied, b.ReadRows({.samples = {{.sample = listed.sample}}}, kCallTimeout));
      EXPECT_EQ(copied[0].record.status, rows[0].record.status);
      EXPECT_EQ(copied[0].rows, rows[0].rows);
      EXPECT_EQ(copied[0].layers, rows[0].layers);
    }
    ASSERT_OK_AND_ASSIGN(const std::vector<SampleState> copies, b.List());
    EXPECT_EQ(static_cast<int64_t>(copies.size()), sealed);
  }

  const std::filesystem::path directory_ =
      std::filesystem::path(::testing::TempDir()) / absl::StrCat("checkpoint_", std::random_device()());
};

class CheckpointOfTest : public CheckpointTest, public ::testing::WithParamInterface<std::pair<int32_t, int32_t>> {};

INSTANTIATE_TEST_SUITE_P(Widths, CheckpointOfTest, ::testing::Values(std::pair{128, 8}, std::pair{300, 3}));

TEST_P(CheckpointOfTest, WhatComesBackIsWhatWasThere) {
  const RunHandle run = OpenRun("r", Geometry::Uniform(3, GetParam().first, GetParam().second));
  FillRun(*run);
  ASSERT_OK_AND_ASSIGN(const ExportOutcome exported, ExportRun(*run, directory_));
  EXPECT_EQ(exported.samples, kSealed);
  EXPECT_EQ(exported.written, kSealed);
  EXPECT_EQ(exported.unsealed, 1);
  ASSERT_OK_AND_ASSIGN(const ImportOutcome imported, ImportRun(*client_, directory_, {.run = "copy"}));
  EXPECT_EQ(imported.run, "copy");
  EXPECT_EQ(imported.samples, kSealed);
  EXPECT_EQ(imported.appended, kSealed);
  EXPECT_EQ(imported.bytes, exported.bytes);
  ASSERT_OK_AND_ASSIGN(const RunHandle copy, client_->JoinRun("copy"));
  ExpectSame(*run, *copy);
}

TEST_F(CheckpointTest, LayersOfDifferentShape) {
  ASSERT_OK_AND_ASSIGN(
      const Geometry geometry,
      Geometry::Create({.num_layers = 3, .moe_layer_ids = {1, 2}, .num_experts = {8, 300}, .top_k = {2, 3}}));
  const RunHandle run = OpenRun("r", geometry);
  constexpr int64_t kRows = 300;
  const RandomRoutes routes = MakeRandomRoutes(geometry, kRows, 1);
  std::vector<int32_t> tensor;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int32_t layer = 0; layer < 2; ++layer) {
      const std::vector<uint16_t> ids = routes.Slice(layer, {{row, row + 1}});
      tensor.insert(tensor.end(), ids.begin(), ids.end());
      tensor.resize(static_cast<size_t>(3 * (2 * row + layer + 1)));
    }
  }
  auto appender = run->NewAppender();
  ASSERT_OK(appender->Append({.sample = "s", .seal = true},
                             {.dtype = DType::kI32, .shape = {kRows, 2, 3}, .layer_basis = LayerBasis::kMoeLayers},
                             AsBytes(tensor)));
  ASSERT_OK(appender->Flush(kCallTimeout));
  ASSERT_OK(ExportRun(*run, directory_));
  ASSERT_OK(ImportRun(*client_, directory_, {.run = "copy"}));
  ASSERT_OK_AND_ASSIGN(const RunHandle copy, client_->JoinRun("copy"));
  ExpectSame(*run, *copy);
}

TEST_F(CheckpointTest, OnlyWhatChangedIsWritten) {
  const RunHandle run = OpenRun("r", Geometry::Uniform(2, 64, 4));
  FillRun(*run);
  ASSERT_OK(ExportRun(*run, directory_ / "1"));
  EXPECT_EQ(ExportRun(*run, directory_ / "1").status().code(), absl::StatusCode::kAlreadyExists);
  ASSERT_OK_AND_ASSIGN(const ExportOutcome again, ExportRun(*run, directory_ / "2", {.previous = directory_ / "1"}));
  EXPECT_EQ(again.written, 0);
  EXPECT_EQ(again.samples, kSealed);
  ASSERT_OK(run->Truncate("s/2", Producer::kRollout, 0, std::nullopt));
  const RandomRoutes routes = MakeRandomRoutes(run->geometry(), 1, 77);
  ASSERT_OK(PutRows(*run, routes, {0, 1}, {.sample = "s/2", .revision = 1, .seal = true}));
  Fill(*run, "new", 30, 5, 3, {});
  ASSERT_OK(run->Release(std::vector<std::string>{"gap"}));
  ASSERT_OK_AND_ASSIGN(const ExportOutcome next, ExportRun(*run, directory_ / "3", {.previous = directory_ / "2"}));
  EXPECT_EQ(next.written, 2);
  EXPECT_EQ(next.samples, kSealed + 1);
  for (const char* before : {"1", "2"}) std::filesystem::remove_all(directory_ / before);
  ASSERT_OK_AND_ASSIGN(const VerifyOutcome verified, VerifyExportedRun(directory_ / "3"));
  EXPECT_TRUE(verified.damaged.empty());
  // An export without a previous one contains only samples that the run has now.
  ASSERT_OK_AND_ASSIGN(const ExportOutcome alone, ExportRun(*run, directory_ / "4"));
  EXPECT_EQ(alone.written, kSealed);
  ASSERT_OK(ImportRun(*client_, directory_ / "4", {.run = "copy"}));
  ASSERT_OK_AND_ASSIGN(const RunHandle copy, client_->JoinRun("copy"));
  ExpectSame(*run, *copy);
}

TEST_F(CheckpointTest, GroupsAreExportedApart) {
  const RunHandle run = OpenRun("r", Geometry::Uniform(2, 64, 4));
  FillRun(*run);
  ASSERT_OK_AND_ASSIGN(const ExportOutcome some, ExportRun(*run, directory_ / "1", {.groups = {{4, 5}}}));
  EXPECT_EQ(some.samples, 2);
  EXPECT_EQ(some.unsealed, 0);
  const std::filesystem::path previous = directory_ / "1";
  ASSERT_OK_AND_ASSIGN(const ExportOutcome others,
                       ExportRun(*run, directory_ / "2", {.groups = {{3, 4}}, .previous = previous}));
  EXPECT_EQ(others.samples, 2);
  EXPECT_EQ(others.written, 2);
  ASSERT_OK_AND_ASSIGN(const ExportOutcome both,
                       ExportRun(*run, directory_ / "3", {.groups = {{3, 5}}, .previous = previous}));
  EXPECT_EQ(both.samples, 4);
  EXPECT_EQ(both.written, 2);
}

TEST_F(CheckpointTest, ThePreviousOneIsOfTheSameRun) {
  const RunHandle run = OpenRun("r", Geometry::Uniform(2, 64, 4));
  FillRun(*run);
  const std::filesystem::path previous = directory_ / "1";
  ASSERT_OK(ExportRun(*run, previous));
  const auto again = [&](routing_replay::Run& of, Producer producer) {
    return ExportRun(of, directory_ / "2", {.producer = producer, .previous = previous});
  };
  EXPECT_THAT(again(*OpenRun("other", run->geometry()), Producer::kRollout),
              Fails(absl::StatusCode::kFailedPrecondition, Reason::kField));
  EXPECT_THAT(again(*run, Producer::kTrainer), Fails(absl::StatusCode::kFailedPrecondition, Reason::kField));
  ASSERT_OK(run->Drop());
  const RunHandle wider = OpenRun("r", Geometry::Uniform(2, 128, 4));
  EXPECT_THAT(again(*wider, Producer::kRollout),
              Fails(absl::StatusCode::kFailedPrecondition, Reason::kGeometryMismatch));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "2"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "2.part"));
}

TEST_F(CheckpointTest, FilesThatThePreviousOneLostAreReadAgainOrMissed) {
  const RunHandle run = OpenRun("r", Geometry::Uniform(2, 64, 4));
  Fill(*run, "a", 40, 2, 3, {});
  Fill(*run, "b", 40, 3, 3, {});
  const std::filesystem::path previous = directory_ / "1";
  ASSERT_OK(ExportRun(*run, previous));
  std::filesystem::resize_file(previous / "00000001.npy", 100);
  ASSERT_OK_AND_ASSIGN(const ExportOutcome whole, ExportRun(*run, directory_ / "2", {.previous = previous}));
  EXPECT_EQ(whole.samples, 2);
  EXPECT_EQ(whole.written, 1);
  ASSERT_OK(run->Release(std::vector<std::string>{"b"}));
  const auto missed = ExportRun(*run, directory_ / "3", {.previous = previous});
  ASSERT_THAT(missed, Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
  EXPECT_EQ(GetErrorDetail(missed.status())->sample, "b");
  ASSERT_OK_AND_ASSIGN(const VerifyOutcome rest, VerifyExportedRun(directory_ / "3"));
  EXPECT_EQ(rest.samples, 1);
}

TEST_F(CheckpointTest, ImportedTwiceIsImportedOnce) {
  const RunHandle run = OpenRun("r", Geometry::Uniform(2, 64, 4));
  FillRun(*run);
  ASSERT_OK(ExportRun(*run, directory_));
  // An import into the exported run itself reads and appends nothing, because the run has all samples.
  ASSERT_OK_AND_ASSIGN(const ImportOutcome same, ImportRun(*client_, directory_));
  EXPECT_EQ(same.run, "r");
  EXPECT_EQ(same.appended, 0);
  for (const int64_t appended : {kSealed, int64_t{0}}) {
    ASSERT_OK_AND_ASSIGN(const ImportOutcome outcome, ImportRun(*client_, directory_, {.run = "copy"}));
    EXPECT_EQ(outcome.samples, kSealed);
    EXPECT_EQ(outcome.appended, appended);
  }
  ASSERT_OK_AND_ASSIGN(const RunHandle copy, client_->JoinRun("copy"));
  ExpectSame(*run, *copy);
}

TEST_F(CheckpointTest, AnImportThatEndedGoesOn) {
  const RunHandle run = OpenRun("r", Geometry::Uniform(2, 64, 4));
  FillRun(*run);
  ASSERT_OK(ExportRun(*run, directory_));
  // An earlier import was interrupted: some samples are complete, one is incomplete, one is not sealed.
  const RunHandle copy = OpenRun("copy", run->geometry());
  const RandomRoutes routes = MakeRandomRoutes(run->geometry(), 1499, 1);
  ASSERT_OK(PutRows(*copy, routes, {0, 90}, {.sample = "long", .group = 3, .weight_version = 1}));
  const RandomRoutes other = MakeRandomRoutes(run->geometry(), 1, 3);
  ASSERT_OK(PutRows(*copy, other, {0, 1}, {.sample = "s/2", .group = 4, .weight_version = 3}));
  ASSERT_OK_AND_ASSIGN(const ImportOutcome outcome, ImportRun(*client_, directory_, {.run = "copy"}));
  EXPECT_EQ(outcome.appended, kSealed);
  ASSERT_OK(copy->Drop());
  ASSERT_OK(ImportRun(*client_, directory_, {.run = "copy"}));
  ExpectSame(*run, *OpenRun("copy", run->geometry()));
}

TEST_F(CheckpointTest, OtherContentIsRejectedByName) {
  const RunHandle run = OpenRun("r", Geometry::Uniform(2, 64, 4));
  FillRun(*run);
  ASSERT_OK(ExportRun(*run, directory_));
  const RunHandle copy = OpenRun("copy", run->geometry());
  const RandomRoutes routes = MakeRandomRoutes(run->geometry(), 39, 2);
  RandomRoutes changed = routes;
  std::vector<uint16_t>& layer = changed.layers[1];
  std::swap(layer[7 * 4], layer[7 * 4 + 1]);
  ASSERT_OK(PutRows(*copy, changed, {0, 19}, {.sample = "s/1", .weight_version = 2}));
  const auto rejected = ImportRun(*client_, directory_, {.run = "copy"});
  ASSERT_THAT(rejected, Fails(absl::StatusCode::kAlreadyExists, Reason::kConflictingRows));
  EXPECT_EQ(GetErrorDetail(rejected.status())->sample, "s/1");
  EXPECT_EQ(copy->Stat("s/1")->committed_rows, 19);
  EXPECT_FALSE(copy->Stat("s/1")->sealed());
  EXPECT_THAT(ImportRun(*client_, directory_, {.run = OpenRun("other", Geometry::Uniform(2, 32, 4))->name()}),
              Fails(absl::StatusCode::kFailedPrecondition, Reason::kGeometryMismatch));
}

TEST_F(CheckpointTest, DamagedFilesAreNotImported) {
  const RunHandle run = OpenRun("r", Geometry::Uniform(2, 64, 4));
  Fill(*run, "s", 40, 2, 3, {});
  ASSERT_OK(ExportRun(*run, directory_));
  std::fstream file(directory_ / "00000000.npy", std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(200);
  file.put(77);
  file.close();
  const auto rejected = ImportRun(*client_, directory_, {.run = "copy"});
  ASSERT_THAT(rejected, Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
  EXPECT_EQ(GetErrorDetail(rejected.status())->sample, "s");
  std::filesystem::remove(directory_ / "index.json");
  EXPECT_THAT(ImportRun(*client_, directory_, {.run = "copy"}),
              Fails(absl::StatusCode::kFailedPrecondition, Reason::kNotCommitted));
}

TEST_F(CheckpointTest, BesideRunningAppends) {
  const RunHandle run = OpenRun("r", Geometry::Uniform(2, 64, 4));
  std::atomic<bool> enough = false;
  int64_t made = 0;
  std::thread writer([&] {
    for (; !enough; ++made) {
      const std::string name = absl::StrCat("s", made % 40);
      if (made >= 40) (void)run->Truncate(name, Producer::kRollout, 0, std::nullopt);
      const auto state = run->Stat(name);
      const RandomRoutes routes = MakeRandomRoutes(run->geometry(), 20 + made % 7, static_cast<uint64_t>(made));
      AppendOptions options{.sample = name, .revision = state.ok() ? state->revision : 0, .seal = true};
      ASSERT_OK(PutRows(*run, routes, {0, routes.rows}, options));
    }
  });
  std::filesystem::path last;
  for (int round = 0; round < 10; ++round) {
    const std::filesystem::path next = directory_ / absl::StrCat(round);
    ASSERT_OK(ExportRun(*run, next, {.previous = last}));
    last = next;
  }
  enough = true;
  writer.join();
  ASSERT_OK(ExportRun(*run, directory_ / "end", {.previous = last}));
  ASSERT_OK(ImportRun(*client_, directory_ / "end", {.run = "copy"}));
  ExpectSame(*run, **client_->JoinRun("copy"));
}

TEST_F(CheckpointTest, TheTrainerReplaysFromTheDirectory) {
  const RunHandle run = OpenRun("r", Geometry::Uniform(2, 64, 4));
  FillRun(*run);
  ASSERT_OK(ExportRun(*run, directory_));
  ASSERT_OK_AND_ASSIGN(const auto source, trainer::DirectorySource::Open(directory_));
  EXPECT_EQ(source->run(), "r");
  EXPECT_EQ(source->geometry(), run->geometry());
  EXPECT_EQ(static_cast<int64_t>(source->samples().size()), kSealed);
  const std::vector<uint32_t> tokens = MakeTokens(40, 2);
  const SampleRead asked{.sample = "s/1", .num_tokens = 40, .token_checks = {CheckOf(tokens, 39)}};
  const SampleRecord record = source->Inspect(asked);
  EXPECT_EQ(record.status, SampleStatus::kOk) << record.message;
  ASSERT_OK_AND_ASSIGN(const SampleState state, run->Stat("s/1"));
  EXPECT_EQ(record.content_id, state.content_id);
  EXPECT_EQ(record.weights, state.weights);
  // A sample imported into another run is served, too.
  ASSERT_OK(ImportRun(*client_, directory_, {.run = "copy"}));
  ASSERT_OK_AND_ASSIGN(const auto read, (*client_->JoinRun("copy"))->ReadRows({.samples = {asked}}, kCallTimeout));
  EXPECT_EQ(read[0].record.status, SampleStatus::kOk) << read[0].record.message;
}

}  // namespace
}  // namespace routing_replay::testing
