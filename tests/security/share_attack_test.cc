// How much of the shared resources one tenant can use.
#include "tests/security/attack_fixture.h"

namespace routing_replay::testing {
namespace {

// Calls that stay open.
class OpenCalls {
 public:
  OpenCalls(GuardedServer::Stub& stub, std::string token) : stub_(stub), token_(std::move(token)) {}
  ~OpenCalls() {
    for (auto& call : calls_) call->TryCancel();
  }

  grpc::ClientReader<v1::ReadResponse>& Read(const v1::ReadRequest& request) {
    calls_.push_back(NewCall(token_));
    readers_.push_back(stub_.Read(calls_.back().get(), request));
    return *readers_.back();
  }
  grpc::ClientReaderWriter<v1::AppendRequest, v1::AppendResponse>& Append() {
    calls_.push_back(NewCall(token_));
    streams_.push_back(stub_.Append(calls_.back().get()));
    return *streams_.back();
  }

 private:
  GuardedServer::Stub& stub_;
  const std::string token_;
  std::vector<std::unique_ptr<grpc::ClientContext>> calls_;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::ReadResponse>>> readers_;
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<v1::AppendRequest, v1::AppendResponse>>> streams_;
};

// The most credit that the server promises to one run: 15/16 of the run's budget. The rest is for what appends cost
// beyond their payload.
constexpr uint64_t PromisedAtMost(int64_t run_budget) { return static_cast<uint64_t>(run_budget - run_budget / 16); }

uint64_t Counter(v1::ServerInfo info, const std::string& name) { return (*info.mutable_counters())[name]; }

// One run has used up its bytes; another run still has its own.
TEST_F(AttackTest, OneRunTakesItsShareAlone) {
  constexpr int kStreams = 2;
  Start({"--run-budget", "2MiB"});
  Bystander bystander(*server_);
  ASSERT_TRUE(OpenRun(*stub_, "other", "theirs").ok());
  absl::Status status;
  for (int i = 0; status.ok() && i < 20; ++i) status = Put(OneAppend("run", absl::StrCat(i), 1 << 19));
  EXPECT_THAT(status, Fails(kExhausted, Reason::kOverBudget));
  EXPECT_EQ(GetErrorDetail(status)->field, "run-budget");

  OpenCalls other(*stub_, "other");
  v1::AppendResponse answer;
  v1::ReadResponse rows;
  // Another run can still append and read, and gets the credit that it asks for.
  for (int i = 0; i < kStreams; ++i) {
    auto& stream = other.Append();
    ASSERT_TRUE(stream.Write(Wish("theirs", 1000)) && stream.Read(&answer));
    EXPECT_EQ(answer.credit().granted_bytes(), 1000u);
    ASSERT_TRUE(stream.Write(OneAppend("theirs", absl::StrCat(i), 3)) && stream.Read(&answer));
    EXPECT_EQ(answer.ack().committed_rows(), 3u) << answer.ack().error().message();
    v1::ReadRequest wait = WaitFor("theirs", absl::StrCat(i));
    wait.mutable_samples(0)->set_num_tokens(7);
    auto& waiting = other.Read(wait);
    v1::AppendRequest rest = OneAppend("theirs", absl::StrCat(i), 3);
    rest.mutable_append()->set_row_start(3);
    rest.mutable_append()->set_seal_num_tokens(7);
    rest.set_want_bytes(100);
    ASSERT_TRUE(stream.Write(rest) && stream.Read(&answer));
    EXPECT_EQ(answer.ack().committed_rows(), 6u) << answer.ack().error().message();
    ASSERT_TRUE(waiting.Read(&rows));
    EXPECT_EQ(rows.records(0).status(), v1::SampleRecord::OK);
  }
  bystander.Await(2);
  const v1::ServerInfo info = Info();
  EXPECT_GT(Counter(info, "routing_replay_quota_rejections_total{quota=\"run_bytes\"}"), 0u);
}

TEST_F(AttackTest, CallsWithoutADeadlineEnd) {
  Start({"--max-deadline", "2s"});
  ASSERT_OK(Put(OneAppend("run", "0", 3)));
  grpc::ClientContext call;
  call.AddMetadata("authorization", "Bearer attacker");
  const auto reader = stub_->Read(&call, WaitFor("run", "0"));
  v1::ReadResponse rows;
  EXPECT_FALSE(reader->Read(&rows));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_GT(Counter(Info(), "routing_replay_quota_rejections_total{quota=\"max_deadline\"}"), 0u);
}

// A stream that sends a byte now and then counts as using its credit, and keeps it. But it holds no more than the share
// of its run; other runs still have theirs.
TEST_F(AttackTest, AStreamThatTricklesHoldsItsShareAlone) {
  Start({"--run-budget", "2MiB", "--stall-timeout", "1s"});
  Bystander bystander(*server_);
  ASSERT_TRUE(OpenRun(*stub_, "other", "theirs").ok());
  OpenCalls attacker(*stub_, "attacker"), other(*stub_, "other");
  auto& trickle = attacker.Append();
  v1::AppendResponse answer;
  ASSERT_TRUE(trickle.Write(Wish("run", 60 * kMiB)) && trickle.Read(&answer));
  EXPECT_EQ(answer.credit().granted_bytes(), PromisedAtMost(2 * kMiB));
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(trickle.Write(OneAppend("run", absl::StrCat(i), 1)) && trickle.Read(&answer));
    EXPECT_EQ(answer.ack().committed_rows(), 1u) << answer.ack().error().message();
    EXPECT_LE(Info().reserved_bytes(), uint64_t{2 * kMiB + 64 * 1024});
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  auto& stream = other.Append();
  ASSERT_TRUE(stream.Write(Wish("theirs", kMiB)) && stream.Read(&answer));
  EXPECT_EQ(answer.credit().granted_bytes(), uint64_t{kMiB});
  bystander.Await(2);
}

// Samples without rows take memory, too.
TEST_F(AttackTest, AppendsWithoutPayloadTakeOfTheRunsShare) {
  Start({"--run-budget", "1MiB"});
  v1::AppendRequest empty = OneAppend("run", "", 3);
  empty.clear_payload();
  empty.mutable_append()->clear_tensor();
  empty.mutable_append()->set_rows(0);
  absl::Status status;
  for (int i = 0; status.ok() && i < 4000; ++i) {
    empty.mutable_append()->set_sample(absl::StrCat(i));
    status = Put(empty);
  }
  EXPECT_THAT(status, Fails(kExhausted, Reason::kOverBudget));
  v1::ListRunsResponse runs;
  ASSERT_TRUE(stub_->ListRuns(NewCall("attacker").get(), {}, &runs).ok());
  EXPECT_LE(runs.runs(0).stored_bytes(), 1u << 20);
  EXPECT_GT(runs.runs(0).stored_bytes(), 1u << 19);
}

TEST_F(AttackTest, CreditTakesOfTheRunsShare) {
  Start({"--run-budget", "2MiB", "--stall-timeout", "1s"});
  Bystander bystander(*server_);
  ASSERT_TRUE(OpenRun(*stub_, "attacker", "second").ok());
  std::vector<std::unique_ptr<grpc::ClientContext>> calls;
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<v1::AppendRequest, v1::AppendResponse>>> streams;
  v1::AppendResponse answer;
  uint64_t granted = 0;
  for (int i = 0; i < 4; ++i) {
    calls.push_back(NewCall("attacker"));
    streams.push_back(stub_->Append(calls.back().get()));
    // Naming another run, or one that does not exist, does not increase the share.
    for (const char* run : {"run", "none", "run"}) {
      ASSERT_TRUE(streams.back()->Write(Wish(run, 60 * kMiB)) && streams.back()->Read(&answer));
      granted += answer.credit().granted_bytes();
    }
  }
  EXPECT_EQ(granted, PromisedAtMost(2 * kMiB));
  bystander.Await(2);
  // A stream loses its credit although it sends messages, because these use none of it.
  std::atomic<bool> ended{false};
  std::thread talker([&] {
    while (!ended && streams[0]->Write(Wish("run", 0))) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  });
  EXPECT_FALSE(streams[0]->Read(&answer));
  ended = true;
  talker.join();
  EXPECT_EQ(streams[0]->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  // The share is free for the next stream.
  ASSERT_TRUE(streams[1]->Write(Wish("run", kMiB)) && streams[1]->Read(&answer));
  EXPECT_EQ(answer.credit().granted_bytes(), uint64_t{kMiB});
  for (auto& call : calls) call->TryCancel();
  for (size_t i = 1; i < streams.size(); ++i) streams[i]->Finish();
}

// Appends that are rejected for their content, and those that cost more than their payload, get no credit beyond the
// run's share.
TEST_F(AttackTest, AppendsThatClaimMuchBringNoMoreCredit) {
  Start({"--run-budget", "4MiB"});
  Bystander bystander(*server_);
  OpenCalls attacker(*stub_, "attacker");
  v1::AppendResponse answer;
  uint64_t left = 0;  // Credit that was granted and not used, over all streams.
  for (int stream = 0; stream < 4; ++stream) {
    auto& append = attacker.Append();
    for (int round = 0; round < 6; ++round) {
      ASSERT_TRUE(append.Write(Wish("run", 60 * kMiB)) && append.Read(&answer));
      left += answer.credit().granted_bytes();
      for (int64_t rows = 1 << 22; rows >= 1 << 14 && left > 0; rows >>= 1) {
        v1::AppendRequest lie = OneAppend("run", absl::StrCat(stream, "/", round), 1);
        lie.mutable_append()->set_rows(static_cast<uint64_t>(rows));
        ASSERT_TRUE(append.Write(lie) && append.Read(&answer));
        EXPECT_NE(answer.ack().error().code(), 0);
        --left;
      }
      EXPECT_LE(left, PromisedAtMost(4 * kMiB));
      EXPECT_LE(Info().reserved_bytes(), uint64_t{4 * kMiB + 64 * 1024});
    }
  }
  EXPECT_GT(left, uint64_t{3 * kMiB});
  bystander.Await(2);
}

}  // namespace
}  // namespace routing_replay::testing
