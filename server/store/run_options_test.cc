#include "server/store/run_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(RunOptionsTest, AnotherListOfServersIsRefusedNamingBoth) {
  const RunInfo run{.run = "r", .options = {.shard_fingerprint = 0xabc}}, alone{.run = "r"};
  EXPECT_OK(CheckJoin(run, nullptr, RunOptions{}));
  EXPECT_OK(CheckJoin(run, nullptr, RunOptions{.shard_fingerprint = 0xabc}));
  const absl::Status refused = CheckJoin(run, nullptr, RunOptions{.shard_fingerprint = 0xdef});
  EXPECT_THAT(refused, Fails(absl::StatusCode::kFailedPrecondition, Reason::kGeometryMismatch));
  EXPECT_EQ(GetErrorDetail(refused)->field, "shard_fingerprint");
  EXPECT_THAT(std::string(refused.message()),
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
    const absl::Status refused = CheckJoin(run, &geometry, options);
    EXPECT_THAT(refused, Fails(absl::StatusCode::kFailedPrecondition, Reason::kGeometryMismatch));
    EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("this endpoint is one server"));
  }
  EXPECT_OK(CheckBlocks(run, {.geometry = run.geometry}));
}

TEST(RunOptionsTest, ADurabilityThatTheStoreCannotGiveIsRefused) {
  const DurabilityLevels levels{Durability::kMemory, Durability::kWritten};
  const RunOptions defaults{.strict = true};
  ASSERT_OK_AND_ASSIGN(const RunOptions unasked, OptionsInForce(std::nullopt, defaults, levels));
  EXPECT_EQ(unasked, (RunOptions{.strict = true, .durability = Durability::kMemory}));
  ASSERT_OK_AND_ASSIGN(const RunOptions asked,
                       OptionsInForce(RunOptions{.durability = Durability::kWritten}, defaults, levels));
  EXPECT_EQ(asked, RunOptions{.durability = Durability::kWritten});
  const absl::Status refused = OptionsInForce(RunOptions{.durability = Durability::kSynced}, defaults, levels).status();
  EXPECT_THAT(refused, Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_EQ(GetErrorDetail(refused)->field, "options.durability");
}

}  // namespace
}  // namespace routing_replay::server
