#include "server/store/store_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

using testing::Fails;

std::string BadField(const RunOptions& options) {
  const absl::Status status = CheckRunOptions(options);
  EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  return GetErrorDetail(status)->field;
}

TEST(RunOptionsTest, RangesAreChecked) {
  EXPECT_OK(CheckRunOptions({}));
  for (int32_t rows : {32, 64, 4096}) EXPECT_OK(CheckRunOptions({.block_rows = rows}));
  for (int32_t rows : {-32, 0, 16, 33, 100, 8192}) {
    EXPECT_EQ(BadField({.block_rows = rows}), "options.block_rows") << rows;
  }
  EXPECT_OK(CheckRunOptions({.ttl = kMaxTtl}));
  EXPECT_EQ(BadField({.ttl = Clock::Duration(0)}), "options.ttl_ms");
  EXPECT_EQ(BadField({.ttl = kMaxTtl + Clock::Duration(1)}), "options.ttl_ms");
}

TEST(RunOptionsTest, JoiningComparesWhatIsGiven) {
  const Geometry geometry = Geometry::Uniform(4, 64, 8), other = Geometry::Uniform(4, 64, 4);
  const RunInfo run{.run = "r", .geometry = std::make_shared<Geometry>(geometry), .options = {.strict = true}};
  EXPECT_OK(CheckJoin(run, nullptr, std::nullopt));
  EXPECT_OK(CheckJoin(run, &geometry, RunOptions{.strict = true}));
  const auto mismatch = Fails(absl::StatusCode::kFailedPrecondition, Reason::kGeometryMismatch);
  EXPECT_THAT(CheckJoin(run, &other, std::nullopt), mismatch);
  EXPECT_THAT(CheckJoin(run, &geometry, RunOptions{}), mismatch);
}

TEST(RunOptionsTest, JoiningWithoutADurabilityTakesWhatTheRunHas) {
  const RunInfo run{.run = "r", .options = {.durability = Durability::kSynced}};
  EXPECT_OK(CheckJoin(run, nullptr, RunOptions{}));
  EXPECT_OK(CheckJoin(run, nullptr, RunOptions{.durability = Durability::kSynced}));
  EXPECT_THAT(CheckJoin(run, nullptr, RunOptions{.durability = Durability::kWritten}),
              Fails(absl::StatusCode::kFailedPrecondition, Reason::kGeometryMismatch));
}

TEST(RunOptionsTest, AnotherListOfServersIsRejectedNamingBoth) {
  const RunInfo run{.run = "r", .options = {.shard_fingerprint = 0xabc}}, alone{.run = "r"};
  EXPECT_OK(CheckJoin(run, nullptr, RunOptions{}));
  EXPECT_OK(CheckJoin(run, nullptr, RunOptions{.shard_fingerprint = 0xabc}));
  const absl::Status rejected = CheckJoin(run, nullptr, RunOptions{.shard_fingerprint = 0xdef});
  EXPECT_THAT(rejected, Fails(absl::StatusCode::kFailedPrecondition, Reason::kGeometryMismatch));
  EXPECT_EQ(GetErrorDetail(rejected)->field, "shard_fingerprint");
  EXPECT_THAT(std::string(rejected.message()),
              ::testing::AllOf(::testing::HasSubstr("is spread over other servers than this client's endpoint names"),
                               ::testing::HasSubstr("0000000000000abc"), ::testing::HasSubstr("0000000000000def")));
  EXPECT_THAT(CheckJoin(alone, nullptr, RunOptions{.shard_fingerprint = 0xabc}),
              Fails(absl::StatusCode::kFailedPrecondition, Reason::kGeometryMismatch));
}

TEST(RunOptionsTest, OneServerOfARunOfSeveralIsLookedAtButNotWrittenTo) {
  const Geometry geometry = Geometry::Uniform(4, 64, 8);
  const RunInfo run{
      .run = "r", .geometry = std::make_shared<Geometry>(geometry), .options = {.shard_fingerprint = 0xabc}};
  EXPECT_OK(CheckJoin(run, nullptr, std::nullopt));
  EXPECT_OK(CheckJoin(run, &geometry, RunOptions{.shard_fingerprint = 0xabc}));
  for (const auto& options : {std::optional<RunOptions>(), std::optional(RunOptions{})}) {
    const absl::Status rejected = CheckJoin(run, &geometry, options);
    EXPECT_THAT(rejected, Fails(absl::StatusCode::kFailedPrecondition, Reason::kGeometryMismatch));
    EXPECT_THAT(std::string(rejected.message()), ::testing::HasSubstr("is spread over other servers"));
  }
  EXPECT_OK(CheckBlocks(run, {.geometry = run.geometry}));
}

TEST(RunOptionsTest, ADurabilityThatTheStoreCannotGiveIsRejected) {
  const DurabilityLevels levels{Durability::kMemory, Durability::kWritten};
  const RunOptions defaults{.strict = true};
  ASSERT_OK_AND_ASSIGN(const RunOptions unasked, OptionsInForce(std::nullopt, defaults, levels));
  EXPECT_EQ(unasked, (RunOptions{.strict = true, .durability = Durability::kMemory}));
  ASSERT_OK_AND_ASSIGN(const RunOptions asked,
                       OptionsInForce(RunOptions{.durability = Durability::kWritten}, defaults, levels));
  EXPECT_EQ(asked, RunOptions{.durability = Durability::kWritten});
  const absl::Status rejected =
      OptionsInForce(RunOptions{.durability = Durability::kSynced}, defaults, levels).status();
  EXPECT_THAT(rejected, Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_EQ(GetErrorDetail(rejected)->field, "options.durability");
}

std::vector<Block> BlocksOf(const std::vector<RowRange>& ranges) {
  std::vector<Block> blocks;
  blocks.reserve(ranges.size());
  for (RowRange rows : ranges) blocks.push_back({.rows = rows});
  return blocks;
}

AppendHeader Good() {
  AppendHeader header{.sample = "s"};
  header.rows = {10, 20};
  header.unrecorded = {{12, 14}, {19, 20}};
  header.token_ids.resize(40);
  header.token_check_start = 5;
  header.seal_num_tokens = 21;
  header.prefix = PrefixReference{"parent", 10, 0};
  return header;
}

TEST(AppendCheckTest, AcceptsWhatIsRight) {
  EXPECT_OK(CheckAppend(Good(), BlocksOf({{10, 12}, {14, 16}, {16, 19}})));
  EXPECT_OK(CheckAppend({.sample = "s"}, {}));
  EXPECT_OK(CheckAppend({.sample = "s", .rows = {0, 0}, .token_check_start = 0}, {}));
}

TEST(AppendCheckTest, BlocksMustBeExactlyTheRecordedRows) {
  for (const auto& ranges : std::vector<std::vector<RowRange>>{{},
                                                               {{10, 12}},
                                                               {{10, 20}},
                                                               {{10, 12}, {14, 20}},
                                                               {{14, 19}, {10, 12}},
                                                               {{10, 12}, {11, 12}, {14, 19}},
                                                               {{10, 12}, {14, 14}, {14, 19}}}) {
    EXPECT_THAT(CheckAppend(Good(), BlocksOf(ranges)), Fails(absl::StatusCode::kInvalidArgument, Reason::kRowCount));
  }
}

struct BadHeader {
  std::string field;
  Reason reason;
  std::function<void(AppendHeader&)> spoil;
};

TEST(AppendCheckTest, NamesTheBadField) {
  const std::vector<BadHeader> cases = {
      {"append.sample", Reason::kField, [](AppendHeader& h) { h.sample = "a b"; }},
      {"append.sample", Reason::kField, [](AppendHeader& h) { h.sample.clear(); }},
      {"append.group", Reason::kField, [](AppendHeader& h) { h.group = INT64_MAX; }},
      {"append.rows", Reason::kField,
       [](AppendHeader& h) {
         h.rows = {-1, 4};
       }},
      {"append.rows", Reason::kField,
       [](AppendHeader& h) {
         h.rows = {4, 3};
       }},
      {"append.rows", Reason::kField,
       [](AppendHeader& h) {
         h.rows = {0, kMaxRows + 1};
       }},
      {"append.unrecorded", Reason::kField,
       [](AppendHeader& h) {
         h.unrecorded = {{9, 11}};
       }},
      {"append.unrecorded", Reason::kField,
       [](AppendHeader& h) {
         h.unrecorded = {{12, 14}, {14, 15}};
       }},
      {"append.token_ids", Reason::kLength, [](AppendHeader& h) { h.token_ids.resize(39); }},
      {"append.token_check_start", Reason::kField, [](AppendHeader& h) { h.rows.begin = 0, h.token_ids.clear(); }},
      {"append.seal_num_tokens", Reason::kRowCount, [](AppendHeader& h) { h.seal_num_tokens = 0; }},
      {"append.seal_num_tokens", Reason::kRowCount, [](AppendHeader& h) { h.seal_num_tokens = kMaxRows + 2; }},
      {"append.weight_label", Reason::kField, [](AppendHeader& h) { h.weight_label.resize(129, 'x'); }},
      {"append.engine", Reason::kField, [](AppendHeader& h) { h.engine.resize(129, 'x'); }},
      {"append.weight_version", Reason::kField, [](AppendHeader& h) { h.weight_version = -2; }},
      {"append.prefix.sample", Reason::kField, [](AppendHeader& h) { h.prefix->sample = "?"; }},
      {"append.prefix.sample", Reason::kField, [](AppendHeader& h) { h.prefix->sample = h.sample; }},
      {"append.prefix.rows", Reason::kField, [](AppendHeader& h) { h.prefix->rows = -1; }},
  };
  for (const BadHeader& bad : cases) {
    AppendHeader header = Good();
    bad.spoil(header);
    const absl::Status status = CheckAppend(header, BlocksOf({{10, 12}, {14, 19}}));
    EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, bad.reason)) << bad.field;
    EXPECT_EQ(GetErrorDetail(status)->field, bad.field);
  }
}

}  // namespace
}  // namespace routing_replay::server
