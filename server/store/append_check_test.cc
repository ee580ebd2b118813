#include "server/store/append_check.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

using testing::Fails;

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
