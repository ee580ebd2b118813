// Compares fetches from an exported run with fetches of the same rows from memory.

#include <cstring>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "proto/exported/exported_run.h"
#include "routing_replay/trainer/source.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"
#include "tests/support/random_routes.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
using routing_replay::testing::MakeRandomRoutes;
using routing_replay::testing::MakeTokens;
using routing_replay::testing::RandomRoutes;
using ::testing::ElementsAre;

constexpr int64_t kTokens[] = {300, 40, 9};
constexpr int32_t kLayers = 3;

// Returns the ids of these rows as [rows][layers][K], one or two bytes each, as they are stored.
std::vector<uint8_t> InStorage(const Geometry& geometry, const RandomRoutes& routes, RowRange rows) {
  std::vector<uint8_t> out;
  for (const int32_t id : routes.Tensor(rows)) {
    out.push_back(static_cast<uint8_t>(id));
    if (geometry.layer(0).id_bytes() == 2) out.push_back(static_cast<uint8_t>(id >> 8));
  }
  return out;
}

class DirectorySourceTest : public ::testing::TestWithParam<std::pair<int32_t, int32_t>> {
 protected:
  DirectorySourceTest() {
    auto exporter = *RunExporter::Create(directory_, "run", Producer::kRollout, geometry_);
    for (int32_t i = 0; i < 3; ++i) {
      const std::string name = absl::StrCat("s", i);
      const int64_t rows = kTokens[i] - 1;
      const RandomRoutes routes = MakeRandomRoutes(geometry_, rows, i);
      const std::vector<uint32_t> tokens = MakeTokens(kTokens[i], i);
      const RowRange recorded{0, rows - 2 * i};  // Later rows were not delivered.
      const std::vector<RowRange> unrecorded =
          i == 0 ? std::vector<RowRange>() : std::vector<RowRange>{{recorded.end, rows}};
      const std::vector<WeightSpan> weights = {{.rows = {0, rows}, .version = i}};
      EXPECT_OK(exporter->Add({.sample = name,
                               .num_tokens = kTokens[i],
                               .revision = i,
                               .content_id = 100u + i,
                               .unrecorded = unrecorded,
                               .weights = weights,
                               .token_checks = {CheckOf(tokens, rows)}},
                              InStorage(geometry_, routes, recorded)));
      const std::vector<int32_t> tensor = routes.Tensor(recorded);
      EXPECT_OK(local_.Add({.sample = name, .num_tokens = kTokens[i], .unrecorded = unrecorded, .token_ids = tokens},
                           {.dtype = DType::kI32, .shape = {recorded.size(), kLayers, GetParam().second}},
                           {reinterpret_cast<const uint8_t*>(tensor.data()), tensor.size() * 4}));
    }
    EXPECT_OK(exporter->Finish());
  }
  ~DirectorySourceTest() override { std::filesystem::remove_all(directory_); }

  static TokenCheck CheckOf(const std::vector<uint32_t>& tokens, int64_t rows) {
    return {rows, TokenCheckExtend(0, {reinterpret_cast<const uint8_t*>(tokens.data()), rows * sizeof(uint32_t)})};
  }

  ReplayPlan Plan(int32_t pp, int32_t cp) const {
    MicroBatchLayout layout{.cu_seqlens_padded = {0}, .partition = Partition::kZigzagPerDocument, .cp_size = 2};
    for (const int64_t tokens : kTokens) {
      layout.sequences.push_back({tokens, tokens - 1});
      layout.cu_seqlens_padded.push_back(layout.cu_seqlens_padded.back() + (tokens + 3) / 4 * 4);
    }
    layout.total_rows = layout.cu_seqlens_padded.back();
    const auto stages = LayerTable::Create({.num_layers = kLayers, .pipeline_size = 3});
    return *MakeReplayPlan(geometry_, *stages, layout, {.pp_rank = pp, .rows = {.cp_rank = cp}});
  }

  const Geometry geometry_ = Geometry::Uniform(kLayers, GetParam().first, GetParam().second);
  const std::filesystem::path directory_ =
      std::filesystem::path(::testing::TempDir()) / absl::StrCat("directory_source_", std::random_device()());
  LocalSource local_{geometry_};
  const std::vector<FetchSequence> sequences_ = {
      {.sample = "s0", .num_tokens = kTokens[0]}, {.handle = SampleHandle("s1")}, {.sample = "s2"}};
};

INSTANTIATE_TEST_SUITE_P(Widths, DirectorySourceTest, ::testing::Values(std::pair{128, 8}, std::pair{300, 3}));

TEST_P(DirectorySourceTest, EveryRankGetsWhatIsInMemory) {
  ASSERT_OK_AND_ASSIGN(const auto source, DirectorySource::Open(directory_));
  EXPECT_EQ(source->run(), "run");
  EXPECT_EQ(source->geometry(), geometry_);
  EXPECT_THAT(source->samples(), ElementsAre("s0", "s1", "s2"));
  for (int32_t pp = 0; pp < 3; ++pp) {
    for (int32_t cp = 0; cp < 2; ++cp) {
      const ReplayPlan plan = Plan(pp, cp);
      ASSERT_OK_AND_ASSIGN(const StagedRows expected, local_.Fetch(plan, sequences_, {}));
      ASSERT_OK_AND_ASSIGN(const StagedRows staged, source->Fetch(plan, sequences_, {}));
      EXPECT_EQ(staged.staging, expected.staging);
      EXPECT_EQ(staged.unrecorded, expected.unrecorded);
      ASSERT_EQ(staged.pieces.size(), expected.pieces.size());
      for (size_t i = 0; i < staged.pieces.size(); ++i) {
        EXPECT_EQ(staged.pieces[i].offset, expected.pieces[i].offset);
        EXPECT_EQ(staged.pieces[i].rows, expected.pieces[i].rows);
      }
      for (size_t i = 0; i < staged.records.size(); ++i) {
        const int32_t sample = plan.slices[i].sequence;
        EXPECT_EQ(staged.records[i].content_id, 100u + sample);
        EXPECT_EQ(staged.records[i].revision, sample);
        ASSERT_EQ(staged.records[i].weights.size(), 1u);
        EXPECT_EQ(staged.records[i].weights[0].version, sample);
      }
    }
  }
}

TEST_P(DirectorySourceTest, TwoSamplesWithOneHandleAreRejected) {
  const auto opened = DirectorySource::Open(directory_, [](absl::string_view id) { return id == "s0" ? 1 : 5; });
  EXPECT_THAT(opened, Fails(absl::StatusCode::kAlreadyExists, Reason::kHandleCollision));
  EXPECT_EQ(opened.status().message(), "sample \"s2\" has the same handle as sample \"s1\"");
}

TEST_P(DirectorySourceTest, AnswersAsRowsInMemoryDo) {
  ASSERT_OK_AND_ASSIGN(const auto source, DirectorySource::Open(directory_));
  const std::vector<uint32_t> tokens = MakeTokens(kTokens[0], 0);
  TokenCheck wrong = CheckOf(tokens, kTokens[0] - 1);
  ++wrong.crc32c;
  const SampleRead asked[] = {
      {.sample = "s0"},
      {.sample = "absent"},
      {.handle = 5},
      {.sample = "s0", .num_tokens = 7},
      {.sample = "s0", .rows = {{0, 1000}}},
      {.sample = "s0", .token_checks = {CheckOf(tokens, kTokens[0] - 1)}},
      {.sample = "s0", .token_checks = {wrong}},
  };
  for (const SampleRead& read : asked) {
    EXPECT_EQ(source->Inspect(read).status, local_.Inspect(read).status);
    EXPECT_EQ(source->Inspect(read).message, local_.Inspect(read).message);
  }
  EXPECT_EQ(source->Inspect(asked[6]).status, SampleStatus::kTokensMismatch);
  const SampleRead not_in_the_index{.sample = "s0", .token_checks = {CheckOf(tokens, 10)}};
  EXPECT_EQ(source->Inspect(not_in_the_index).status, SampleStatus::kTokensNotKnown);
  EXPECT_EQ(source->producer(), Producer::kRollout);
}

TEST_P(DirectorySourceTest, DamageAndOtherGeometriesAreErrors) {
  ASSERT_OK_AND_ASSIGN(const auto source, DirectorySource::Open(directory_));
  const Geometry other = Geometry::Uniform(kLayers, GetParam().first, GetParam().second - 1);
  ReplayPlan plan = Plan(0, 0);
  plan.routing[0] = other.layer(0);
  EXPECT_THAT(source->Fetch(plan, sequences_, {}),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kGeometryMismatch));
  std::fstream(directory_ / "00000001.npy", std::ios::in | std::ios::out | std::ios::binary).seekp(100).put('\x7F');
  const auto damaged = source->Fetch(Plan(0, 0), sequences_, {.missing = MissingPolicy::kLive});
  EXPECT_THAT(damaged, Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
  EXPECT_EQ(GetErrorDetail(damaged.status())->sample, "s1");
  std::filesystem::remove(directory_ / "index.json");
  EXPECT_THAT(DirectorySource::Open(directory_), Fails(absl::StatusCode::kFailedPrecondition, Reason::kNotCommitted));
}

}  // namespace
}  // namespace routing_replay::trainer
