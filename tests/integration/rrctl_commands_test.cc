// The rrctl commands that need a server, tested as functions: portions of a read, and groups.
#include <filesystem>
#include <random>

#include "client/rrctl/diff.h"
#include "client/rrctl/rows.h"
#include "client/rrctl/runs.h"
#include "tests/integration/fixture.h"

namespace routing_replay::testing {

using namespace client;  // NOLINT(google-build-using-namespace)

namespace {

// Returns what `get` must print for the rows `range` of `routes`, of which the rows `unrecorded` are not recorded.
Document ExpectedRows(const Geometry& geometry, const RandomRoutes& routes, const std::vector<int32_t>& ordinals,
                      RowRange range, RowRange unrecorded) {
  Document rows = Document::array();
  for (int64_t row = range.begin; row < range.end; ++row) {
    for (const int32_t ordinal : ordinals) {
      Document experts;
      if (!unrecorded.contains(row)) experts = routes.Slice(ordinal, {{row, row + 1}});
      rows.push_back({{"row", row}, {"layer", geometry.layer(ordinal).layer_id}, {"experts", experts}});
    }
  }
  return rows;
}

class RrctlCommandsTest : public ServerTest {
 protected:
  void SetUp() override { StartServer(); }

  absl::StatusOr<Document> GetAll(const GetOptions& options) {
    Document all = Document::array();
    const absl::Status status = Get(*client_, options, [&](const Document& rows) {
      ++portions_;
      for (const Document& row : rows) all.push_back(row);
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return all;
  }

  int portions_ = 0;
};

TEST_F(RrctlCommandsTest, GetShowsEveryRowInPortions) {
  ASSERT_OK_AND_ASSIGN(
      const Geometry geometry,
      Geometry::Create({.num_layers = 200, .moe_layer_ids = {3, 50, 199}, .num_experts = {300}, .top_k = {64}}));
  const RunHandle run = OpenRun("r", geometry);
  constexpr int64_t kRows = 3000;
  const RandomRoutes routes = MakeRandomRoutes(geometry, kRows, 1);
  constexpr RowRange kUnrecorded{1000, 1700};
  ASSERT_OK(PutRows(*run, routes, {0, kUnrecorded.begin}, {.sample = "s"}));
  ASSERT_OK(run->PutUnrecorded({.sample = "s", .row_start = kUnrecorded.begin}, kUnrecorded.size()));
  ASSERT_OK(PutRows(*run, routes, {kUnrecorded.end, kRows}, {.sample = "s"}));

  ASSERT_OK_AND_ASSIGN(const Document all, GetAll({.run = "r", .sample = "s"}));
  EXPECT_GT(portions_, 1);
  EXPECT_EQ(all, ExpectedRows(geometry, routes, {0, 1, 2}, {0, kRows}, kUnrecorded));
  ASSERT_OK_AND_ASSIGN(const Document some,
                       GetAll({.run = "r", .sample = "s", .layers = {199, 3, 199}, .rows = RowRange{990, 1010}}));
  EXPECT_EQ(some, ExpectedRows(geometry, routes, {0, 2}, {990, 1010}, kUnrecorded));
}

TEST_F(RrctlCommandsTest, GetOfAnEmptySampleShowsNothing) {
  const RunHandle run = OpenRun("r", Geometry::Uniform(2, 8, 2));
  ASSERT_OK(run->PutUnrecorded({.sample = "s", .seal_num_tokens = 1}, 0));
  ASSERT_OK_AND_ASSIGN(const Document all, GetAll({.run = "r", .sample = "s"}));
  EXPECT_EQ(all, Document::array());
}

TEST_F(RrctlCommandsTest, GetSaysWhyItCannot) {
  const Geometry geometry = Geometry::Uniform(2, 8, 2);
  const RunHandle run = OpenRun("r", geometry);
  const RandomRoutes routes = MakeRandomRoutes(geometry, 10, 1);
  ASSERT_OK(PutRows(*run, routes, {0, 10}, {.sample = "s", .seal_num_tokens = 11}));
  EXPECT_THAT(GetAll({.run = "x", .sample = "s"}).status(), Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
  EXPECT_THAT(GetAll({.run = "r", .sample = "x"}).status(), Fails(absl::StatusCode::kNotFound, Reason::kNoSample));
  EXPECT_EQ(GetAll({.run = "r", .sample = "s", .rows = RowRange{5, 11}}).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(GetAll({.run = "r", .sample = "s", .layers = {7}}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RrctlCommandsTest, GetNoticesANewRevisionOfTheSample) {
  const Geometry geometry = Geometry::Uniform(64, 128, 64);
  const RunHandle run = OpenRun("r", geometry);
  const RandomRoutes routes = MakeRandomRoutes(geometry, 100, 1);
  ASSERT_OK(PutRows(*run, routes, {0, 100}, {.sample = "s"}));
  const absl::Status status = Get(*client_, {.run = "r", .sample = "s"}, [&](const Document&) {
    EXPECT_OK(run->Truncate("s", Producer::kRollout, 99, std::nullopt));
    return PutRows(*run, routes, {99, 100}, {.sample = "s", .revision = 1}).status();
  });
  EXPECT_THAT(status, Fails(absl::StatusCode::kAborted, Reason::kOldRevision));
}

TEST_F(RrctlCommandsTest, StatOfARunHasItsGeometryAndSettings) {
  OpenRun("r", Geometry::Uniform(2, 8, 2), {.ttl = std::chrono::hours(2), .strict = true});
  ASSERT_OK_AND_ASSIGN(const Document run, DescribeRun(*client_, "r"));
  EXPECT_EQ(run["geometry"]["num_experts"], 8);
  EXPECT_EQ(run["ttl_ms"], 7200000);
  EXPECT_EQ(run["strict"], true);
  EXPECT_THAT(DescribeRun(*client_, "x").status(), Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
}

TEST_F(RrctlCommandsTest, StatTellsEngineAndWeights) {
  const Geometry geometry = Geometry::Uniform(2, 8, 2);
  const RunHandle run = OpenRun("r", geometry);
  const RandomRoutes routes = MakeRandomRoutes(geometry, 10, 1);
  ASSERT_OK(PutRows(*run, routes, {0, 4}, {.sample = "s", .weight_version = 3, .engine = "x 1"}));
  ASSERT_OK(PutRows(*run, routes, {4, 6}, {.sample = "s", .weight_version = 3, .engine = "x 1"}));
  ASSERT_OK(PutRows(*run, routes, {6, 10}, {.sample = "s", .engine = "y 2"}));
  ASSERT_OK_AND_ASSIGN(const Document samples, DescribeSamples(*client_, "r", {"s"}, Producer::kRollout));
  EXPECT_EQ(samples[0]["engine"], "x 1");
  EXPECT_EQ(samples[0]["weights"], Document::parse(R"([{"rows": [0, 6], "version": 3, "label": ""},
                                                       {"rows": [6, 10], "version": null, "label": ""}])"));
}

TEST_F(RrctlCommandsTest, GroupsAreReadAsARange) {
  EXPECT_EQ(*ParseGroups("4"), std::pair(int64_t{4}, int64_t{5}));
  EXPECT_EQ(*ParseGroups("-3:5"), std::pair(int64_t{-3}, int64_t{5}));
  for (const char* bad : {"", "x", "5:5", "1:2:3", "9223372036854775807"}) EXPECT_FALSE(ParseGroups(bad).ok()) << bad;
}

TEST_F(RrctlCommandsTest, ARunMovesThroughADirectory) {
  const Geometry geometry = Geometry::Uniform(2, 8, 2);
  const RunHandle run = OpenRun("r", geometry);
  const RandomRoutes routes = MakeRandomRoutes(geometry, 10, 1);
  for (const std::string sample : {"a", "b", "c"}) {
    ASSERT_OK(PutRows(*run, routes, {0, 10}, {.sample = sample, .group = sample[0], .seal = sample != "c"}));
  }
  const std::string directory =
      ::testing::TempDir() + "rrctl_commands_" + std::to_string(std::random_device()()) + "/checkpoint";
  const TransferOptions out{.run = "r", .directory = directory};
  ASSERT_OK_AND_ASSIGN(const Document exported, ExportToDirectory(*client_, out));
  EXPECT_EQ(exported, Document({{"run", "r"},
                                {"directory", directory},
                                {"samples", 2},
                                {"written", 2},
                                {"unsealed", 1},
                                {"written_bytes", 80}}));
  const TransferOptions in{.run = "copy", .directory = directory};
  ASSERT_OK_AND_ASSIGN(const Document imported, ImportFromDirectory(*client_, in));
  EXPECT_EQ(
      imported,
      Document({{"run", "copy"}, {"directory", directory}, {"samples", 2}, {"appended", 2}, {"appended_bytes", 80}}));
  ASSERT_OK_AND_ASSIGN(const Document verified, Verify(*client_, {.run = "copy"}));
  EXPECT_EQ(verified["samples"], 2);
  EXPECT_EQ(verified["rows"], 20);
  EXPECT_TRUE(verified["damaged"].empty());
  EXPECT_THAT(ExportToDirectory(*client_, {.run = "x", .directory = directory}).status(),
              Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
  std::filesystem::remove_all(std::filesystem::path(directory).parent_path());
}

class RrctlDiffTest : public RrctlCommandsTest {
 protected:
  absl::StatusOr<Document> DiffOf(const DiffOptions& options) { return Diff(*client_, options); }
  const Geometry geometry_ = Geometry::Uniform(3, 64, 4);
  const RandomRoutes routes_ = MakeRandomRoutes(geometry_, 40, 1);
};

TEST_F(RrctlDiffTest, EqualSamplesOfTwoRunsAreEqual) {
  const RunHandle one = OpenRun("one", geometry_);
  const RunHandle two = OpenRun("two", geometry_);
  ASSERT_OK(PutRows(*one, routes_, {0, 40}, {.sample = "s:1/0", .seal = true}));
  ASSERT_OK(PutRows(*two, routes_, {0, 40}, {.sample = "s"}));
  ASSERT_OK_AND_ASSIGN(const Document diff, DiffOf({.a = "one:s:1/0", .b = "two:s"}));
  EXPECT_EQ(diff["equal"], true);
  EXPECT_EQ(diff["a"]["run"], "one");
  EXPECT_EQ(diff["a"]["sample"], "s:1/0");
  EXPECT_EQ(diff["a"]["tokens"], 41);
  EXPECT_EQ(diff["compared_rows"], 40);
  EXPECT_TRUE(diff["first"].is_null());
  EXPECT_TRUE(diff["same_tokens"].is_null());
}

TEST_F(RrctlDiffTest, TheFirstDifferenceIsNamedAndOrderIsApart) {
  const RunHandle run = OpenRun("r", geometry_);
  RandomRoutes other = routes_;
  std::vector<uint16_t>& layer = other.layers[2];
  std::reverse(layer.begin() + 4 * 7, layer.begin() + 4 * 8);
  const uint16_t taken[] = {layer[4 * 9], layer[4 * 9 + 1], layer[4 * 9 + 2], layer[4 * 9 + 3]};
  uint16_t free = 0;
  while (std::find(std::begin(taken), std::end(taken), free) != std::end(taken)) ++free;
  layer[4 * 9] = free;
  ASSERT_OK(PutRows(*run, routes_, {0, 40}, {.sample = "a", .engine = "x"}));
  ASSERT_OK(PutRows(*run, other, {0, 30}, {.sample = "a", .producer = Producer::kTrainer}));
  ASSERT_OK_AND_ASSIGN(const Document diff, DiffOf({.a = "r:a"}));
  EXPECT_EQ(diff["equal"], false);
  EXPECT_EQ(diff["b"]["producer"], "trainer");
  EXPECT_EQ(diff["compared_rows"], 30);
  EXPECT_EQ(diff["rows_only_in_a"], 10);
  EXPECT_EQ(diff["rows_only_in_b"], 0);
  EXPECT_EQ(diff["differing_rows"], 2);
  EXPECT_EQ(diff["order_only"], 1);
  EXPECT_EQ(diff["other_experts"], 1);
  EXPECT_EQ(diff["first"], Document({{"row", 7},
                                     {"layer", 2},
                                     {"what", "order"},
                                     {"a", routes_.Slice(2, {{7, 8}})},
                                     {"b", other.Slice(2, {{7, 8}})}}));
  EXPECT_EQ(diff["layers"],
            Document::array({{{"layer", 2}, {"choices", 30}, {"order_only", 1}, {"other_experts", 1}}}));
}

TEST_F(RrctlDiffTest, UnrecordedRowsAreRowsOfTheOther) {
  const RunHandle run = OpenRun("r", geometry_);
  ASSERT_OK(PutRows(*run, routes_, {0, 40}, {.sample = "a"}));
  ASSERT_OK(PutRows(*run, routes_, {0, 10}, {.sample = "b"}));
  ASSERT_OK(run->PutUnrecorded({.sample = "b", .row_start = 10}, 15));
  ASSERT_OK(PutRows(*run, routes_, {25, 40}, {.sample = "b"}));
  ASSERT_OK_AND_ASSIGN(const Document diff, DiffOf({.a = "r:b", .b = "r:a"}));
  EXPECT_EQ(diff["equal"], false);
  EXPECT_EQ(diff["compared_rows"], 25);
  EXPECT_EQ(diff["rows_only_in_b"], 15);
  EXPECT_EQ(diff["differing_rows"], 0);
  EXPECT_TRUE(diff["first"].is_null());
}

TEST_F(RrctlDiffTest, SaysWhatIsNotThereOrCannotBeCompared) {
  const RunHandle run = OpenRun("r", geometry_);
  ASSERT_OK(PutRows(*run, routes_, {0, 40}, {.sample = "a"}));
  EXPECT_THAT(DiffOf({.a = "r:a"}).status(), Fails(absl::StatusCode::kNotFound, Reason::kNoSample));
  EXPECT_THAT(std::string(DiffOf({.a = "r:a"}).status().message()),
              ::testing::HasSubstr("sample a that the trainer recorded (R2)"));
  EXPECT_THAT(std::string(DiffOf({.a = "r:x"}).status().message()),
              ::testing::HasSubstr("sample x from the rollout engine (R3)"));
  EXPECT_THAT(DiffOf({.a = "x:a", .b = "r:a"}).status(), Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
  EXPECT_EQ(DiffOf({.a = "a", .b = "r:a"}).status().code(), absl::StatusCode::kInvalidArgument);
  const Geometry wide = Geometry::Uniform(3, 65, 4);
  ASSERT_OK(PutRows(*OpenRun("wide", wide), MakeRandomRoutes(wide, 40, 1), {0, 40}, {.sample = "a"}));
  EXPECT_THAT(DiffOf({.a = "wide:a", .b = "r:a"}).status(), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
}

}  // namespace
}  // namespace routing_replay::testing
