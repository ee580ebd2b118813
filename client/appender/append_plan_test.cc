#include "client/appender/append_plan.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "client/testing/model_server.h"
#include "proto/wire/payload/tensor_payload.h"
#include "tests/support/random_routes.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

using testing::Fails;
using testing::MakeTokens;
using testing::ModelGeometry;
using testing::ModelIds;
using testing::ModelRows;
using testing::ModelServer;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr BlockOptions kLimits = {.max_message_bytes = 4 << 20, .max_payload_bytes = 64 << 20};

// Parses a piece as the server would.
AppendRequest AsRequest(const AppendPiece& piece) {
  AppendRequest request{.append = piece.header};
  for (const auto part : piece.payload) request.payload.Append(part);
  return request;
}

std::vector<RowRange> SomeHoles(std::mt19937_64& random, RowRange rows) {
  std::vector<RowRange> holes;
  for (int64_t at = rows.begin + static_cast<int64_t>(random() % 100); at + 90 < rows.end;
       at += 91 + static_cast<int64_t>(random() % 300)) {
    holes.push_back({at, at + 1 + static_cast<int64_t>(random() % 80)});
  }
  return holes;
}

TEST(AppendPlanTest, SealsWithoutANumber) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 300; ++round) {
    AppendOptions options{.sample = "s", .seal = random() % 4 != 0};
    options.row_start = static_cast<int64_t>(random() % 500);
    if (random() % 2 == 0) {
      options.prefix_sample = "p";
      options.prefix_rows = 1 + static_cast<int64_t>(random() % 900);
    }
    if (random() % 5 == 0) options.seal_num_tokens = 2000;
    const auto rows = static_cast<int64_t>(random() % 400);
    const std::vector<uint8_t> ids = ModelIds(random, options.row_start + rows);
    const RowRange range = RowRange::OfSize(options.row_start, rows);
    const auto plan = rows == 0 ? PlanUnrecorded(options, 0)
                                : PlanBlocks(options, ModelRows(ids, range, SomeHoles(random, range), 64), 64, 300);
    ASSERT_OK(plan);
    // A seal without a number of tokens states one more than the rows that are committed once the append is stored.
    std::optional<int64_t> expected;
    if (options.seal) expected = std::max(options.prefix_rows, options.row_start + rows) + 1;
    if (options.seal_num_tokens) expected = 2000;
    EXPECT_EQ(plan->pieces.back().header.seal_num_tokens, expected) << round;
    for (size_t i = 0; i + 1 < plan->pieces.size(); ++i) EXPECT_FALSE(plan->pieces[i].header.seal_num_tokens);
  }
}

TEST(AppendPlanTest, ThePiecesTogetherAreTheAppend) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    const auto start = static_cast<int64_t>(random() % 500);
    const auto total = start + static_cast<int64_t>(random() % 2000);
    const std::vector<uint8_t> ids = ModelIds(random, total);
    const std::vector<uint32_t> tokens = MakeTokens(total + 1, round);
    const std::vector<RowRange> holes = SomeHoles(random, {start, total});
    const AppendOptions options{.sample = "s",
                                .row_start = start,
                                .group = 7,
                                .weight_version = 3,
                                .token_ids = tokens,
                                .seal_num_tokens = total + 1};
    const auto piece_bytes = 1 + static_cast<int64_t>(random() % 600);
    ASSERT_OK_AND_ASSIGN(const AppendPlan plan,
                         PlanBlocks(options, ModelRows(ids, {start, total}, holes, 64), 64, piece_bytes));

    ModelServer server;
    server.samples["s"].rows.resize(start);
    for (int64_t row = 0; row < start; ++row) server.samples["s"].rows[row] = {ids[row], tokens[row]};
    int64_t next = start;
    for (const AppendPiece& piece : plan.pieces) {
      EXPECT_EQ(piece.header.rows.begin, next);
      next = piece.header.rows.end;
      const bool last = &piece == &plan.pieces.back();
      EXPECT_EQ(piece.header.seal_num_tokens.has_value(), last);
      EXPECT_TRUE(last || next % 64 == 0) << next;
      EXPECT_LE(piece.payload_bytes, std::max<int64_t>(piece_bytes, 64));
      EXPECT_EQ(piece.header.group, 7);
      if (piece.header.rows.begin > 0) {
        EXPECT_EQ(piece.header.token_check_start,
                  TokenCheckExtend(0, testing::AsBytes(tokens).first(4 * piece.header.rows.begin)));
      }
      ASSERT_OK(server.Apply(AsRequest(piece)).error);
    }
    EXPECT_EQ(next, total);
    for (int64_t row = start; row < total; ++row) {
      const bool hole = std::any_of(holes.begin(), holes.end(), [&](RowRange r) { return r.contains(row); });
      const testing::ModelRow& kept = server.samples["s"].rows.at(row);
      ASSERT_EQ(kept.id, hole ? std::nullopt : std::optional<uint8_t>(ids[row]));
      ASSERT_EQ(kept.token, tokens[row]);
    }
  }
}

TEST(AppendPlanTest, TokensOfTheRowsAloneLeaveTheHistoryUnchecked) {
  std::mt19937_64 random(2);
  const std::vector<uint8_t> ids = ModelIds(random, 300);
  const std::vector<uint32_t> tokens = MakeTokens(200, 1);
  ASSERT_OK_AND_ASSIGN(const AppendPlan plan, PlanBlocks({.sample = "s", .row_start = 100, .token_ids = tokens},
                                                         ModelRows(ids, {100, 300}, {}, 64), 64, 64));
  EXPECT_GT(plan.pieces.size(), 1u);
  std::string all;
  for (const AppendPiece& piece : plan.pieces) {
    EXPECT_FALSE(piece.header.token_check_start);
    all += piece.header.token_ids;
  }
  EXPECT_EQ(all, std::string(reinterpret_cast<const char*>(tokens.data()), 800));

  ASSERT_OK_AND_ASSIGN(const AppendPlan silent,
                       PlanBlocks({.sample = "s", .row_start = 100}, ModelRows(ids, {100, 300}, {}, 64), 64, 1 << 20));
  EXPECT_EQ(silent.pieces.size(), 1u);
  EXPECT_TRUE(silent.pieces[0].header.token_ids.empty());
}

TEST(AppendPlanTest, EachPieceCanBeToldWhenItIsSentAgain) {
  std::mt19937_64 random(1);
  const std::vector<uint8_t> ids = ModelIds(random, 640);
  std::set<uint64_t> keys;
  for (int i = 0; i < 10; ++i) {
    ASSERT_OK_AND_ASSIGN(const AppendPlan plan, PlanBlocks({.sample = "s"}, ModelRows(ids, {0, 640}, {}, 64), 64, 64));
    for (const AppendPiece& piece : plan.pieces) keys.insert(piece.header.resend_key);
    ASSERT_OK_AND_ASSIGN(const AppendPlan unrecorded, PlanUnrecorded({.sample = "s"}, 3));
    keys.insert(unrecorded.pieces[0].header.resend_key);
  }
  EXPECT_EQ(keys.size(), 10u * 11);
  EXPECT_FALSE(keys.contains(0));
}

TEST(AppendPlanTest, OnlyTheFirstPieceOpensFromAPrefix) {
  std::mt19937_64 random(3);
  const std::vector<uint8_t> ids = ModelIds(random, 300);
  ASSERT_OK_AND_ASSIGN(const AppendPlan plan,
                       PlanBlocks({.sample = "s", .row_start = 10, .prefix_sample = "p", .prefix_rows = 10},
                                  ModelRows(ids, {10, 300}, {}, 64), 64, 1));
  for (const AppendPiece& piece : plan.pieces) {
    EXPECT_EQ(piece.header.prefix.has_value(), &piece == &plan.pieces.front());
  }
}

TEST(AppendPlanTest, BadOptionsAreRejectedByName) {
  const std::vector<uint32_t> tokens = MakeTokens(7, 1);
  const auto reject = [](const AppendOptions& options, int64_t rows, const std::string& field) {
    const absl::Status status = PlanUnrecorded(options, rows).status();
    EXPECT_EQ(status.code(), kInvalid) << field;
    EXPECT_EQ(GetErrorDetail(status).value_or(ErrorDetail{}).field, field) << status;
  };
  reject({.sample = ""}, 1, "append.sample");
  reject({.sample = "a b"}, 1, "append.sample");
  reject({.sample = "s", .row_start = -1}, 1, "append.row_start");
  reject({.sample = "s"}, -1, "append.rows");
  reject({.sample = "s", .row_start = 5}, kMaxRows, "append.rows");
  reject({.sample = "s", .revision = -1}, 1, "append.revision");
  reject({.sample = "s", .weight_version = -2}, 1, "append.weight_version");
  reject({.sample = "s", .weight_label = std::string(200, 'a')}, 1, "append.weight_label");
  reject({.sample = "s", .row_start = 5, .token_ids = tokens}, 4, "append.token_ids");
  reject({.sample = "s", .seal_num_tokens = 0}, 1, "append.seal_num_tokens");
  reject({.sample = "s", .seal_num_tokens = -4}, 1, "append.seal_num_tokens");
  reject({.sample = "s", .prefix_sample = "a b"}, 1, "append.prefix.sample");
  reject({.sample = "s", .prefix_sample = "p", .prefix_rows = -1}, 1, "append.prefix.rows");
  reject({.sample = "s", .unrecorded = {{0, 1}}}, 2, "append.unrecorded");
  reject({.sample = "s", .attempt = -1}, 1, "append.attempt");
  reject({.sample = "s", .attempt = int64_t{1} << 32}, 1, "append.attempt");
  reject({.sample = "s", .restart_nonce = 1, .attempt = 1}, 1, "append.attempt");
  EXPECT_OK(PlanUnrecorded({.sample = "s", .row_start = 5, .token_ids = tokens}, 2));
  EXPECT_OK(PlanUnrecorded({.sample = "s", .row_start = 5, .token_ids = tokens}, 0));
}

TEST(AppendPlanTest, AnAttemptIsARestartThatTheServerCanCompare) {
  for (const int64_t attempt : {int64_t{0}, (int64_t{1} << 32) - 1}) {
    ASSERT_OK_AND_ASSIGN(const AppendPlan plan, PlanUnrecorded({.sample = "s", .attempt = attempt}, 1));
    EXPECT_EQ(AttemptOf(plan.pieces[0].header.restart_nonce), attempt);
  }
  EXPECT_EQ(AttemptOf(0), std::nullopt);
  EXPECT_EQ(AttemptOf(7), std::nullopt);
}

TEST(AppendPlanTest, SomeRowsOfATensorAreTaken) {
  const std::vector<uint8_t> bytes = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::string base64 = "AQIDBAUGBwg=";
  const absl::Span<const uint8_t> text(reinterpret_cast<const uint8_t*>(base64.data()), base64.size());
  const Geometry geometry = Geometry::Uniform(2, 16, 1);
  const TensorDescription raw{.dtype = DType::kU8, .shape = {4, 2, 1}};
  TensorDescription encoded = raw;
  encoded.encoding = Encoding::kBase64;
  for (const auto& [tensor, payload] : {std::pair(raw, absl::MakeConstSpan(bytes)), std::pair(encoded, text)}) {
    ASSERT_OK_AND_ASSIGN(const AppendPlan plan, PlanRows({.sample = "s", .row_start = 4, .take = RowRange{1, 3}},
                                                         tensor, payload, geometry, kLimits));
    EXPECT_EQ(plan.pieces[0].header.rows, (RowRange{4, 6}));
    EXPECT_EQ(plan.pieces[0].payload_bytes, 4);
    for (const RowRange take : {RowRange{0, 5}, RowRange{-1, 2}, RowRange{3, 2}, RowRange{5, 5}}) {
      EXPECT_THAT(PlanRows({.sample = "s", .take = take}, tensor, payload, geometry, kLimits),
                  Fails(kInvalid, Reason::kField));
    }
  }
}

// Returns random ranges within `rows`, each with a random weight version.
std::vector<WeightSpan> SomeWeights(std::mt19937_64& random, RowRange rows) {
  std::vector<WeightSpan> weights;
  int64_t at = rows.begin;
  while (true) {
    at += static_cast<int64_t>(random() % 3 == 0 ? random() % 50 : 0);
    if (at >= rows.end) break;
    const int64_t size = std::min(static_cast<int64_t>(1 + random() % 90), rows.end - at);
    const auto version = static_cast<int64_t>(random() % 5);
    weights.push_back({RowRange::OfSize(at, size), version, std::string("v") + std::to_string(version)});
    at += size;
  }
  return weights;
}

// Returns a tensor in which `before` rows precede the rows of `ids` and `after` rows follow them, all filled with -5.
std::vector<uint8_t> WithOthers(const std::vector<int32_t>& ids, int64_t before, int64_t after) {
  std::vector<int32_t> all(before * 2 * 3, -5);
  all.insert(all.end(), ids.begin(), ids.end());
  all.resize(all.size() + after * 2 * 3, -5);
  std::vector<uint8_t> bytes(4 * all.size());
  std::memcpy(bytes.data(), all.data(), bytes.size());
  return bytes;
}

TEST(AppendPlanTest, PiecesHaveOneWeightVersionEach) {
  std::mt19937_64 random(2);
  const Geometry geometry = Geometry::Uniform(2, 64, 3);
  for (int round = 0; round < 100; ++round) {
    const auto start = static_cast<int64_t>(random() % 100);
    const auto slots = static_cast<int64_t>(1 + random() % 400);
    const auto before = static_cast<int64_t>(random() % 5);
    AppendOptions options{.sample = "s", .row_start = start, .weight_version = 9};
    options.take = RowRange::OfSize(before, slots);
    options.unrecorded = SomeHoles(random, {start, start + slots});
    const RowRange rows = RowRange::OfSize(start, slots + TotalRows(options.unrecorded));
    options.weights = SomeWeights(random, rows);
    const std::vector<uint32_t> tokens = MakeTokens(rows.end, round);
    options.token_ids = tokens;
    options.seal = true;
    const testing::RandomRoutes routes = testing::MakeRandomRoutes(geometry, slots, round);
    const std::vector<uint8_t> bytes = WithOthers(routes.Tensor({0, slots}), before, 3);
    const TensorDescription tensor{.dtype = DType::kI32, .shape = {before + slots + 3, 2, 3}};
    ASSERT_OK_AND_ASSIGN(const AppendPlan here,
                         PlanRows(options, tensor, bytes, geometry,
                                  {.block_rows = 64, .max_message_bytes = 4 << 20, .max_payload_bytes = 64 << 20}));
    ASSERT_OK_AND_ASSIGN(const DecodedRows whole, DecodeTensor(geometry, tensor, bytes,
                                                               {.row_start = start,
                                                                .take = options.take,
                                                                .unrecorded = options.unrecorded,
                                                                .block_rows = 64,
                                                                .cuts = *WeightCuts(options.weights)}));
    size_t block = 0;
    int64_t next = start;
    for (size_t i = 0; i < here.pieces.size(); ++i) {
      const AppendHeader& header = here.pieces[i].header;
      EXPECT_EQ(header.rows.begin, next);
      for (; next < header.rows.end; ++next) {
        const auto of = std::find_if(options.weights.begin(), options.weights.end(),
                                     [&](const WeightSpan& span) { return span.rows.contains(next); });
        EXPECT_EQ(header.weight_version, of == options.weights.end() ? 9 : of->version) << next;
      }
      const bool last = i + 1 == here.pieces.size();
      EXPECT_EQ(header.seal_num_tokens, last ? std::optional<int64_t>(rows.end + 1) : std::nullopt);
      for (const absl::Span<const uint8_t> payload : here.pieces[i].payload) {
        EXPECT_EQ(whole.blocks[block++].bytes.span(), payload);
      }
    }
    EXPECT_EQ(block, whole.blocks.size());
    EXPECT_EQ(next, rows.end);
  }
}

TEST(AppendPlanTest, WeightsThatCannotBe) {
  const std::vector<uint8_t> bytes = {1, 2, 3, 4};
  const TensorDescription tensor{.dtype = DType::kU8, .shape = {4, 1, 1}};
  for (const std::vector<WeightSpan>& weights : {std::vector<WeightSpan>{{{2, 2}, 1}},
                                                 {{{0, 2}, 1}, {{1, 3}, 2}},
                                                 {{{2, 4}, 1}, {{0, 2}, 2}},
                                                 {{{-1, 2}, 1}},
                                                 {{{3, 5}, 1}},
                                                 {{{90, 95}, 1}},
                                                 {{{0, 2}, -2}},
                                                 {{{0, 2}, 1, std::string(200, 'a')}}}) {
    EXPECT_THAT(PlanRows({.sample = "s", .weights = weights}, tensor, bytes, ModelGeometry(),
                         {64, Codec::kRaw, 4 << 20, 64 << 20}),
                Fails(kInvalid, Reason::kField));
  }
}

}  // namespace
}  // namespace routing_replay::client
