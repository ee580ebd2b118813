#include "server/service/read_session.h"

#include <gtest/gtest.h>
#include <atomic>
#include <deque>
#include <map>

#include "proto/wire/payload/tensor_payload.h"
#include "server/store/memory/memory_store.h"
#include "tests/support/random_routes.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

using testing::AsBytes;
using testing::MakeRandomRoutes;

// The status that every read of a block returns; with kOk blocks can be read. Tests change it while the store is in
// use.
using Away = std::atomic<absl::StatusCode>;

class AwayHome final : public BlockHome {
 public:
  AwayHome(std::shared_ptr<RunUsage> usage, const Away& away)
      : BlockHome(usage), kept_(std::make_shared<MemoryHome>(std::move(usage))), away_(away) {}

  int64_t Cost(const Geometry&, int64_t, Codec) const override { return 1; }
  std::shared_ptr<StoredBlock> Keep(Block block, int64_t cost) override {
    return std::make_shared<AwayBlock>(shared_from_this(), away_, kept_->Keep(std::move(block), cost));
  }

 private:
  class AwayBlock final : public StoredBlock {
   public:
    AwayBlock(std::shared_ptr<BlockHome> home, const Away& away, std::shared_ptr<StoredBlock> block)
        : StoredBlock(std::move(home), block->rows(), block->codec(), block->cost()),
          away_(away),
          block_(std::move(block)) {}

   private:
    absl::StatusOr<LoadedBlock> LoadBytes() const override {
      const absl::StatusCode code = away_;
      if (code != absl::StatusCode::kOk) return absl::Status(code, "the disk is away");
      return Load(block_);
    }

    const Away& away_;
    const std::shared_ptr<StoredBlock> block_;
  };

  const std::shared_ptr<MemoryHome> kept_;
  const Away& away_;
};

class AwayKeeper final : public RunKeeper {
 public:
  AwayKeeper(ByteBudget& budget, const Away& away) : budget_(budget), away_(away) {}
  std::string name() const override { return "away"; }
  DurabilityLevels durability() const override { return {}; }
  void Begin() override {}
  void End() override {}
  absl::StatusOr<std::shared_ptr<BlockHome>> Create(const RunInfo&) override {
    return std::make_shared<AwayHome>(std::make_shared<RunUsage>(budget_), away_);
  }
  absl::Status Drop(absl::string_view) override { return absl::OkStatus(); }

 private:
  ByteBudget& budget_;
  const Away& away_;
};

class ReadSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(store_->OpenRun("r", &geometry_, RunOptions{}));
    for (const std::string sample : {"a", "b"}) Append(sample);
  }

  void Append(const std::string& sample) {
    const std::vector<int32_t> tensor = MakeRandomRoutes(geometry_, 300, 1).Tensor({0, 300});
    ASSERT_OK_AND_ASSIGN(DecodedRows decoded,
                         DecodeTensor(geometry_, {.dtype = DType::kI32, .shape = {300, 3, 4}}, AsBytes(tensor), {}));
    AppendCommand command{.run = "r", .geometry = store_->GetRun("r")->geometry};
    command.header.sample = sample;
    command.header.rows = {0, 300};
    command.header.seal_num_tokens = 301;
    command.blocks = std::move(decoded.blocks);
    ASSERT_OK(store_->Append(std::move(command)));
  }

  // Flips a bit of the sample's block that begins at row 256.
  void Damage(const std::string& sample) {
    const std::vector<RowRange> rows = {{256, 300}};
    ASSERT_OK_AND_ASSIGN(const SampleSnapshot snapshot,
                         store_->Snapshot("r", Producer::kRollout, {.sample = sample}, rows));
    ASSERT_OK_AND_ASSIGN(const LoadedBlock block, Load(snapshot.rows[0].block));
    const_cast<uint8_t&>(block.view.bytes.front()) ^= 1;
  }

  // All messages of a read, taken apart.
  std::vector<ReadResponse> Read(ReadRequest request) {
    request.run = "r";
    auto session = ReadSession::Create(*store_, memory_, std::move(request), 1 << 20);
    EXPECT_OK(session);
    std::vector<ReadResponse> messages;
    for (ReadStep step = (*session)->Next(true); step.kind == ReadStep::Kind::kMessage; step = (*session)->Next(true)) {
      std::string& bytes = bytes_.emplace_back(step.header);
      for (const PayloadPart& part : step.payload) bytes.append(part.bytes.begin(), part.bytes.end());
      auto parsed = ParseReadResponse(ByteChain({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
      EXPECT_OK(parsed);
      messages.push_back(*std::move(parsed));
    }
    return messages;
  }

  const Geometry geometry_ = Geometry::Uniform(3, 128, 4);
  ByteBudget budget_{1 << 30};
  ByteBudget memory_{64 << 20};
  std::unique_ptr<Store> store_ = NewMemoryStore({.budget = &budget_});
  std::deque<std::string> bytes_;
};

TEST_F(ReadSessionTest, DamageFoundWhileCuttingTakesTheSampleBackAndNoOther) {
  Damage("a");
  const auto messages = Read({.samples = {{.sample = "a", .rows = {{0, 290}}}, {.sample = "b", .rows = {{0, 290}}}}});
  std::map<int32_t, std::vector<SampleStatus>> statuses;
  std::map<int32_t, int64_t> rows;
  for (const ReadResponse& message : messages) {
    for (const SampleRecord& record : message.records) statuses[record.index].push_back(record.status);
    for (const Piece& piece : message.pieces) {
      // No piece of a sample follows the record that withdraws it, not even in the same message.
      EXPECT_EQ(statuses[piece.sample_index].back(), SampleStatus::kOk);
      rows[piece.sample_index] += piece.rows.size() * piece.layer_count;
    }
  }
  EXPECT_EQ(statuses[0], (std::vector<SampleStatus>{SampleStatus::kOk, SampleStatus::kLost}));
  EXPECT_EQ(statuses[1], (std::vector<SampleStatus>{SampleStatus::kOk}));
  EXPECT_LT(rows[0], 290 * 3);
  EXPECT_EQ(rows[1], 290 * 3);
}

// While its client reads nothing, a session reserves the memory of its last message and of the sample that it is
// sending.
TEST_F(ReadSessionTest, WhatIsHeldIsPaidFor) {
  ReadRequest request{.run = "r", .samples = {{.sample = "a", .rows = {{1, 290}}}, {.sample = "b"}}};
  {
    ASSERT_OK_AND_ASSIGN(const auto session, ReadSession::Create(*store_, memory_, request, 64 << 10));
    EXPECT_EQ(memory_.used(), 0);
    const ReadStep step = session->Next(true);
    ASSERT_EQ(step.kind, ReadStep::Kind::kMessage);
    EXPECT_GE(memory_.used(), 288 * 3 * 4 / 8) << "a cut is a copy";
    EXPECT_EQ(session->Next(true).kind, ReadStep::Kind::kDone);
    EXPECT_EQ(memory_.used(), 0);
    EXPECT_EQ(ReadSession::Create(*store_, memory_, request, 64 << 10)->get()->Next(true).kind,
              ReadStep::Kind::kMessage);
  }
  EXPECT_EQ(memory_.used(), 0);
  // With 48 KiB left, a message of 1 MiB does not fit, so the session sends a shorter one.
  const ByteReservation most = *memory_.Reserve(memory_.limit() - (48 << 10));
  EXPECT_EQ(ReadSession::Create(*store_, memory_, request, 1 << 20)->get()->Next(true).kind, ReadStep::Kind::kMessage);
  // With nothing left, not even the sample's state fits, so the session fails.
  const ByteReservation rest = *memory_.Reserve(memory_.limit() - memory_.used());
  const ReadStep rejected = ReadSession::Create(*store_, memory_, request, 1 << 20)->get()->Next(true);
  EXPECT_EQ(rejected.kind, ReadStep::Kind::kFailed);
  EXPECT_THAT(rejected.failure, testing::Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
}

TEST_F(ReadSessionTest, DamageInTheFirstCutIsAnsweredToo) {
  Damage("b");
  const auto messages = Read({.samples = {{.sample = "b", .rows = {{260, 270}}}}});
  ASSERT_FALSE(messages.empty());
  EXPECT_EQ(messages.back().records.back().status, SampleStatus::kLost);
}

TEST_F(ReadSessionTest, ASampleThatNobodyHasBegunIsWaitedFor) {
  ReadRequest request{.run = "r", .samples = {{.sample = "late"}, {.sample = "never"}}, .wait = true};
  ASSERT_OK_AND_ASSIGN(const auto session, ReadSession::Create(*store_, memory_, request, 1 << 20));
  ReadStep step = session->Next(false);
  EXPECT_EQ(step.kind, ReadStep::Kind::kWait);
  EXPECT_EQ(step.wait_for.sample, "late");
  Append("late");
  step = session->Next(false);
  ASSERT_EQ(step.records.size(), 1u);
  EXPECT_EQ(step.records[0].status, SampleStatus::kOk);
  step = session->Next(false);
  EXPECT_EQ(step.kind, ReadStep::Kind::kWait);
  EXPECT_EQ(step.wait_for.sample, "never");
  step = session->Next(true);
  ASSERT_EQ(step.records.size(), 1u);
  EXPECT_EQ(step.records[0].status, SampleStatus::kNotFound);

  request.samples = {{.sample = "never"}};
  request.only_begun = true;
  ASSERT_OK_AND_ASSIGN(const auto only_begun, ReadSession::Create(*store_, memory_, request, 1 << 20));
  EXPECT_EQ(only_begun->Next(false).kind, ReadStep::Kind::kMessage);
}

TEST_F(ReadSessionTest, NobodyWaitsForASampleOfARunThatIsGone) {
  ReadRequest request{.run = "r", .samples = {{.sample = "late"}}, .wait = true};
  ASSERT_OK_AND_ASSIGN(const auto session, ReadSession::Create(*store_, memory_, request, 1 << 20));
  ASSERT_OK(store_->DropRun("r"));
  const ReadStep step = session->Next(false);
  ASSERT_EQ(step.records.size(), 1u);
  EXPECT_EQ(step.records[0].status, SampleStatus::kNotFound);
}

// Rows that cannot be read at the moment are not reported as lost.
TEST_F(ReadSessionTest, AStoreThatIsAwayEndsTheRead) {
  Away away{absl::StatusCode::kOk};
  store_ = *NewKeptStore({.budget = &budget_}, std::make_shared<AwayKeeper>(budget_, away), {});
  SetUp();
  for (const auto code :
       {absl::StatusCode::kUnavailable, absl::StatusCode::kPermissionDenied, absl::StatusCode::kFailedPrecondition,
        absl::StatusCode::kResourceExhausted, absl::StatusCode::kInternal}) {
    ReadRequest request{.max_message_bytes = 64 << 10};
    request.run = "r";
    request.samples = {{.sample = "a"}, {.sample = "none"}, {.sample = "b"}};
    auto session = ReadSession::Create(*store_, memory_, std::move(request), 1 << 20);
    ASSERT_OK(session);
    away = code;
    const ReadStep first = (*session)->Next(true);
    ASSERT_EQ(first.kind, ReadStep::Kind::kMessage);  // The record of "a", which was found before.
    ASSERT_EQ(first.records.size(), 1u);
    EXPECT_EQ(first.records[0].status, SampleStatus::kOk);
    const ReadStep second = (*session)->Next(true);
    EXPECT_EQ(second.kind, ReadStep::Kind::kFailed);
    EXPECT_EQ(second.failure.code(), code);
    away = absl::StatusCode::kOk;
  }
}

TEST_F(ReadSessionTest, DamageThatTheStoreFindsIsLost) {
  Away away{absl::StatusCode::kOk};
  store_ = *NewKeptStore({.budget = &budget_}, std::make_shared<AwayKeeper>(budget_, away), {});
  SetUp();
  away = absl::StatusCode::kDataLoss;
  const auto messages = Read({.samples = {{.sample = "a"}}});
  ASSERT_FALSE(messages.empty());
  EXPECT_EQ(messages.back().records.back().status, SampleStatus::kLost);
}

TEST_F(ReadSessionTest, MessagesStayNearTheSizeAskedFor) {
  for (int i = 0; i < 30; ++i) Append(absl::StrCat("more", i));
  ReadRequest request{.max_message_bytes = 64 << 10};
  for (int i = 0; i < 30; ++i) request.samples.push_back({.sample = absl::StrCat("more", i)});
  const auto messages = Read(request);
  int64_t bytes = 0;
  for (const ReadResponse& message : messages) {
    EXPECT_LE(message.payload.size(), (64u << 10) + 256 * 4);  // A cut goes out whole.
    bytes += static_cast<int64_t>(message.payload.size());
  }
  EXPECT_EQ(bytes, 30 * 300 * geometry_.raw_row_bytes());
  EXPECT_LT(messages.size(), 12u);
}

// Single rows of single layers: the table is far larger than the ids.
TEST_F(ReadSessionTest, TheTableCountsAsPartOfAMessage) {
  ReadRequest request{.layers = {1}, .max_message_bytes = 64 << 10};
  for (int i = 0; i < 40; ++i) {
    request.samples.push_back({.sample = "a"});
    for (int64_t row = 0; row < 300; row += 2) request.samples.back().rows.push_back({row, row + 1});
  }
  const auto messages = Read(request);
  size_t pieces = 0;
  for (const ReadResponse& message : messages) pieces += message.pieces.size();
  EXPECT_EQ(pieces, 40u * 150);
  for (const std::string& bytes : bytes_) EXPECT_LT(bytes.size(), 65u << 10);
}

TEST(SampleCheckTest, TokensThatNobodyKnowsAreNotOtherOnes) {
  const SampleState state{.sample = "s", .committed_rows = 64};
  const SampleRead asked{.sample = "s", .rows = {{0, 64}}, .token_checks = {{20, 1}}};
  const auto status = [&](std::optional<bool> same) {
    return CheckSample(state, asked, /*until_seal=*/true, [same](const TokenCheck&) { return same; }).status;
  };
  EXPECT_EQ(status(true), SampleStatus::kOk);
  EXPECT_EQ(status(false), SampleStatus::kTokensMismatch);
  EXPECT_EQ(status(std::nullopt), SampleStatus::kTokensNotKnown);
}

}  // namespace
}  // namespace routing_replay::testing
