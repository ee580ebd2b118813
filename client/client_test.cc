#include "routing_replay/client.h"

#include <filesystem>
#include <fstream>

#include "client/testing/client_fixture.h"

namespace routing_replay::testing {
namespace {

using std::chrono::milliseconds;

class RunTest : public ClientTest {
 protected:
  absl::StatusOr<AppendOutcome> Put(const std::string& sample, const std::vector<uint8_t>& ids,
                                    AppendOptions options = {}) {
    const RowRange range{0, static_cast<int64_t>(ids.size())};
    options.sample = sample;
    options.seal_num_tokens = range.end + 1;
    return run_->Put(options, Tensor(range), ids);
  }

  std::mt19937_64 random_{1};
};

TEST_F(RunTest, PutAndReadBack) {
  const std::vector<uint8_t> ids = ModelIds(random_, 300);
  ASSERT_OK_AND_ASSIGN(const AppendOutcome outcome, Put("s", ids));
  EXPECT_EQ(outcome.sample, "s");
  EXPECT_EQ(outcome.committed_rows, 300);
  EXPECT_TRUE(outcome.sealed);
  ASSERT_OK_AND_ASSIGN(const auto read, run_->ReadRows({.samples = {{.sample = "s"}, {.sample = "no"}}}, kLong));
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].rows, (std::vector<RowRange>{{0, 300}}));
  EXPECT_EQ(read[0].layers[0], std::vector<uint16_t>(ids.begin(), ids.end()));
  EXPECT_EQ(read[1].record.status, SampleStatus::kNotFound);
}

TEST_F(RunTest, TextThatIsNotUtf8WritesNothingToTheHostsStandardError) {
  ::testing::internal::CaptureStderr();
  v1::SampleState state;
  EXPECT_FALSE(state.ParseFromString("\x0A\x02\xFF\xFF"));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST_F(RunTest, AReadWaitsForItsServer) {
  const std::vector<uint8_t> ids = ModelIds(random_, 300);
  ASSERT_OK(Put("s", ids));
  ASSERT_OK(Put("t", ids));
  service_.BreakNextReads(3);
  ASSERT_OK_AND_ASSIGN(const auto read, run_->ReadRows({.samples = {{.sample = "s"}, {.sample = "t"}}}, kLong));
  for (const SampleRows& sample : read) {
    EXPECT_EQ(sample.layers[0], std::vector<uint16_t>(ids.begin(), ids.end()));
  }
  EXPECT_GT(service_.Calls("Read"), 1);
}

TEST_F(RunTest, TransientFailuresAreRetriedWhereThatIsHarmless) {
  const std::vector<uint8_t> ids = ModelIds(random_, 10);
  service_.FailNext(2);
  ASSERT_OK(Put("s", ids));
  EXPECT_EQ(service_.Calls("Put"), 3);
  ExpectStored("s", ids);
  service_.FailNext(2);
  EXPECT_OK(run_->Stat("s"));
  service_.FailNext(1);
  EXPECT_EQ(run_->Truncate("s", Producer::kRollout, 5, {}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(service_.Calls("Truncate"), 1);
  ASSERT_OK_AND_ASSIGN(const SampleState state, run_->Truncate("s", Producer::kRollout, 5, {}));
  EXPECT_EQ(state.revision, 1);
  EXPECT_EQ(state.committed_rows, 5);
}

TEST_F(RunTest, AnAnswerOfPutThatIsLostDoesNoHarm) {
  const std::vector<uint8_t> ids = ModelIds(random_, 10);
  int calls = 0;
  service_.OnAppend([&](const AppendRequest&) { return ++calls == 1 ? Do::kLoseAnswer : Do::kAnswer; });
  ASSERT_OK_AND_ASSIGN(const AppendOutcome outcome, Put("s", ids));
  EXPECT_EQ(outcome.trimmed_rows, 10);
  ExpectStored("s", ids);
}

TEST_F(RunTest, RejectionsKeepTheirDetail) {
  const std::vector<uint8_t> ids = ModelIds(random_, 10);
  service_.OnAppend([](const AppendRequest&) { return Do::kReject; });
  EXPECT_THAT(Put("s", ids), Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  EXPECT_THAT(Put("a b", ids), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_THAT(run_->Stat("none"), Fails(absl::StatusCode::kNotFound, Reason::kNoSample));
}

TEST_F(RunTest, ControlCalls) {
  for (int i = 0; i < 5; ++i) ASSERT_OK(Put(absl::StrCat("s", i), ModelIds(random_, 10), {.group = i}));
  ASSERT_OK_AND_ASSIGN(const auto all, run_->List());
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[4].sample, "s4");
  ASSERT_OK_AND_ASSIGN(const auto some, run_->List(std::make_pair(1, 3)));
  EXPECT_EQ(some.size(), 2u);
  const std::vector<std::string> names = {"s3", "nobody", "s1"};
  ASSERT_OK_AND_ASSIGN(const auto stats, run_->StatMany(names));
  ASSERT_EQ(stats.size(), 2u);
  EXPECT_EQ(stats[0].sample, "s3");
  EXPECT_EQ(stats[1].num_tokens, 11);
  ASSERT_OK_AND_ASSIGN(const ReleaseOutcome released, run_->Release(names));
  EXPECT_EQ(released.samples, 2);
}

TEST_F(RunTest, SettingsInForceComeFromTheServer) {
  ASSERT_OK_AND_ASSIGN(const auto run, client_->OpenRun("run", ModelGeometry(), {.ttl = milliseconds(5000)}));
  EXPECT_EQ(run->settings().ttl, milliseconds(5000));
  EXPECT_EQ(run->settings().block_rows, 64);
  EXPECT_EQ(run->settings().codec, Codec::kRaw);
  EXPECT_EQ(run->geometry(), ModelGeometry());
}

TEST_F(RunTest, DamagedBytesNeverReachTheSink) {
  ASSERT_OK(Put("s", ModelIds(random_, 300)));
  service_.OnRead([](v1::ReadResponse& response) {
    (*response.mutable_payload())[200] ^= 1;
    return true;
  });
  const absl::Status status = run_->ReadRows({.samples = {{.sample = "s"}}}, kLong).status();
  EXPECT_THAT(status, Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
  EXPECT_EQ(GetErrorDetail(status)->row, 192);
  EXPECT_EQ(GetErrorDetail(status)->sample, "s");
}

// Ends the read at the given sample.
class StoppingSink final : public ReadSink {
 public:
  explicit StoppingSink(int32_t stop_at) : stop_at_(stop_at) {}
  absl::Status OnRecord(const SampleRecord& record) override {
    last_ = record.index;
    return record.index == stop_at_ ? absl::AbortedError("enough") : absl::OkStatus();
  }
  absl::Status OnPiece(const ReadPiece&) override { return absl::OkStatus(); }
  int32_t last() const { return last_; }

 private:
  const int32_t stop_at_;
  int32_t last_ = -1;
};

TEST_F(RunTest, ASinkMayEndTheRead) {
  ASSERT_OK(Put("s", ModelIds(random_, 300)));
  ReadRequest request;
  for (int i = 0; i < 200; ++i) request.samples.push_back({.sample = "s"});
  for (const int32_t stop : {0, 1, 50, 199}) {
    StoppingSink sink(stop);
    EXPECT_EQ(run_->Read(request, sink, kLong).code(), absl::StatusCode::kAborted);
    EXPECT_EQ(sink.last(), stop);
  }
  StoppingSink sink(-1);
  EXPECT_OK(run_->Read(request, sink, kLong));
  EXPECT_EQ(sink.last(), 199);
}

TEST_F(RunTest, AServerThatStallsEndsWithTheDeadline) {
  ASSERT_OK(Put("s", ModelIds(random_, 300)));
  int messages = 0;
  service_.OnRead([&](v1::ReadResponse&) { return ++messages <= 3; });
  ReadRequest request;
  for (int i = 0; i < 10; ++i) request.samples.push_back({.sample = "s"});
  StoppingSink sink(-1);
  EXPECT_EQ(run_->Read(request, sink, milliseconds(300)).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(sink.last(), 2);
}

// Returns the code of a call that was answered. Repeats a call whose deadline passed before the answer, as happens on a
// busy machine.
absl::StatusCode CodeOf(const std::function<absl::Status()>& call) {
  const auto end = std::chrono::steady_clock::now() + kLong;
  absl::Status status;
  do {
    status = call();
  } while (absl::IsDeadlineExceeded(status) && std::chrono::steady_clock::now() < end);
  return status.code();
}

TEST(DeadServerTest, EveryCallFailsInItsTime) {
  constexpr milliseconds kTime(300);
  std::shared_ptr<routing_replay::Run> run;
  std::unique_ptr<Client> client;
  {
    FakeService service;
    client = *Client::Connect({.endpoint = service.endpoint(), .call_timeout = kTime});
    ASSERT_EQ(CodeOf([&] {
                auto opened = client->OpenRun("run", ModelGeometry());
                if (opened.ok()) run = *std::move(opened);
                return opened.status();
              }),
              absl::StatusCode::kOk);
  }
  EXPECT_EQ(CodeOf([&] { return client->JoinRun("run").status(); }), absl::StatusCode::kUnavailable);
  EXPECT_EQ(CodeOf([&] { return run->Stat("s").status(); }), absl::StatusCode::kUnavailable);
  EXPECT_EQ(run->Truncate("s", Producer::kRollout, 0, {}).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(CodeOf([&] { return run->ReadRows({.samples = {{.sample = "s"}}}, kTime).status(); }),
            absl::StatusCode::kUnavailable);
}

class MovedServerTest : public ::testing::Test {
 protected:
  MovedServerTest() { Move(); }
  ~MovedServerTest() override { std::filesystem::remove(file_); }

  // The server ends, and one with an empty store starts at another address.
  void Move() {
    auto next = std::make_unique<FakeService>();
    std::ofstream(file_) << next->endpoint() << "\n";
    service_ = std::move(next);
  }

  const std::filesystem::path file_ = std::filesystem::path(::testing::TempDir()) / "moved_server_endpoint";
  std::unique_ptr<FakeService> service_;
};

TEST_F(MovedServerTest, TheEndpointsFileIsReadAgain) {
  std::mt19937_64 random(3);
  const std::vector<uint8_t> ids = ModelIds(random, 20);
  const TensorDescription tensor{.dtype = DType::kU8, .shape = {20, 1, 1}, .layer_basis = LayerBasis::kMoeLayers};
  ASSERT_OK_AND_ASSIGN(const auto client,
                       Client::Connect({.endpoint = "file:" + file_.string(), .call_timeout = kLong}));
  ASSERT_OK_AND_ASSIGN(const auto run, client->OpenRun("run", ModelGeometry()));
  auto appender = run->NewAppender();
  ASSERT_OK(appender->Append({.sample = "s"}, tensor, ids));
  ASSERT_OK(appender->Flush(kLong));

  Move();
  EXPECT_OK(run->Put({.sample = "put"}, tensor, ids));
  Move();
  // Truncate is sent only once, so it must go to the new address at once.
  EXPECT_OK(run->Truncate("s", Producer::kRollout, 0, {}));
  EXPECT_EQ(service_->Calls("Truncate"), 1);
  Move();
  ASSERT_OK(appender->Append({.sample = "append"}, tensor, ids));
  EXPECT_OK(appender->Flush(kLong));
  EXPECT_EQ(service_->Sample("append").rows.size(), 20u);
  appender.reset();  // The appender would notice the move, too.
  Move();
  EXPECT_OK(run->ReadRows({.samples = {{.sample = "s"}}}, kLong));
  // A missing or malformed file changes nothing.
  std::ofstream(file_) << "nonsense\n";
  EXPECT_OK(run->Put({.sample = "put"}, tensor, ids));
}

TEST(ConnectTest, BadEndpointsAreRejected) {
  EXPECT_THAT(Client::Connect({.endpoint = "nonsense"}), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
}

}  // namespace
}  // namespace routing_replay::testing
