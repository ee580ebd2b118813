#include "server/service/grpc_stream.h"

#include <grpcpp/create_channel.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "proto/wire/message/grpc_bytes.h"
#include "server/store/memory/memory_store.h"
#include "server/store/row_pieces.h"
#include "tests/security/http2_connection.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

using std::chrono::milliseconds;
using testing::Fails;

constexpr std::chrono::seconds kPatience(20);
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

grpc::ByteBuffer Answer(size_t bytes) {
  const grpc::Slice slice(std::string(bytes, '\0'));
  return {&slice, 1};
}

// Blocks its loop's thread from Hold to Release.
class HoldingCall final : public Call {
 public:
  void Drain() override {}
  void Expect() { held_.Begin(); }  // Before the loop starts.
  void Hold(CallLoop& loop) {
    loop.Post(alarm_, held_);
    holds_.WaitForNotification();
  }
  void Release() { released_.Notify(); }

 private:
  CallEvent held_{this, [this](bool) {
                    holds_.Notify();
                    released_.WaitForNotification();
                    SetFinished();
                  }};
  CallAlarm alarm_;
  absl::Notification holds_, released_;
};

// A server of single methods, whose answer functions the test provides.
class UnaryCallTest : public ::testing::Test {
 protected:
  void TearDown() override {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    workers_->Finish();
    loop_->ShutdownAndJoin();
  }

  void Start(const WorkerPool::Limits& limits, std::vector<UnaryMethod> methods) {
    methods_ = std::move(methods);
    context_ = std::make_unique<ServiceContext>(config_, Clock::Real(), *access_, budget_, *store_, metrics_);
    workers_ = std::make_unique<WorkerPool>(limits);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    builder.SetMaxReceiveMessageSize(-1);
    loop_ = std::make_unique<GrpcLoop>(builder.AddCompletionQueue());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    for (const UnaryMethod& method : methods_) Listen(*context_, service_, *loop_, method, workers_.get());
    if (holding_ != nullptr) loop_->Adopt(std::unique_ptr<Call>(holding_));
    loop_->Start();
    address_ = absl::StrCat("127.0.0.1:", port);
    stub_ = v1::RoutingReplay::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  }

  static std::unique_ptr<grpc::ClientContext> NewCall(milliseconds patience = kPatience) {
    auto call = std::make_unique<grpc::ClientContext>();
    call->set_deadline(std::chrono::system_clock::now() + patience);
    return call;
  }
  absl::Status Seal(grpc::ClientContext& call, const v1::SealRequest& request = {}) {
    v1::SampleState state;
    return FromGrpcStatus(stub_->Seal(&call, request, &state));
  }
  int64_t Counted(const std::string& name) { return static_cast<int64_t>(metrics_.Counters()[name]); }

  ServerConfig config_;
  std::unique_ptr<AccessControl> access_ = std::make_unique<AccessControl>();
  ByteBudget budget_{int64_t{64} << 20};
  std::unique_ptr<Store> store_ = NewMemoryStore({.budget = &budget_});
  Metrics metrics_;
  std::unique_ptr<ServiceContext> context_;
  std::vector<UnaryMethod> methods_;
  RawService service_;
  std::unique_ptr<WorkerPool> workers_;
  std::unique_ptr<GrpcLoop> loop_;
  HoldingCall* holding_ = nullptr;  // Set by tests that need it.
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  std::unique_ptr<v1::RoutingReplay::Stub> stub_;
};

TEST_F(UnaryCallTest, WorkWhoseCallerIsGoneIsNotDone) {
  absl::Notification begun;
  std::atomic<int> drops{0};
  Start({.threads = 1}, {{"Seal",
                          [&](ServiceContext&, const UnaryCaller& caller, grpc::ByteBuffer&) {
                            begun.Notify();
                            while (!caller.gone) std::this_thread::sleep_for(milliseconds(1));
                            return Answer(0);
                          }},
                         {"DropRun", [&](ServiceContext&, const UnaryCaller&, grpc::ByteBuffer&) {
                            ++drops;
                            return Answer(0);
                          }}});
  const auto holding = NewCall();
  auto held = std::async(std::launch::async, [&] { return Seal(*holding); });
  begun.WaitForNotification();
  v1::DropRunResponse dropped;
  const grpc::Status late = stub_->DropRun(NewCall(milliseconds(300)).get(), {}, &dropped);
  EXPECT_EQ(late.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  holding->TryCancel();  // Sent after the cancellation of DropRun, on the same connection.
  EXPECT_FALSE(held.get().ok());
  workers_->Finish();
  EXPECT_EQ(drops, 0);
}

TEST_F(UnaryCallTest, CallsWhoseEventsComeAfterTheServersEndAreFinished) {
  holding_ = new HoldingCall;
  holding_->Expect();
  Start({}, {{"Seal", [](ServiceContext&, const UnaryCaller&, grpc::ByteBuffer&) { return Answer(0); }}});
  testing::Http2Connection connection(address_);
  connection.StartCall("Seal", "");  // Its request never arrives, so the call has an open Read.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (metrics_.calls_in_flight() == 0 && std::chrono::steady_clock::now() < end) connection.Listen(milliseconds(1));
  ASSERT_EQ(metrics_.calls_in_flight(), 1);
  holding_->Hold(*loop_);
  server_->Shutdown(std::chrono::system_clock::now());  // The Read fails, which the loop does not see yet.
  auto ended = std::async(std::launch::async, [this] { loop_->ShutdownAndJoin(); });
  ended.wait_for(milliseconds(100));  // If Shutdown wrongly does not wait for the call, the queue is shut down now.
  holding_->Release();
  ended.get();
  EXPECT_EQ(metrics_.calls_in_flight(), 0);
  loop_.reset();
  server_.reset();
}

TEST_F(UnaryCallTest, ATokenIsOneOwnerHoweverItIsSpelled) {
  config_.token_file = ::testing::TempDir() + "/unary_call_test.tokens";
  std::ofstream(config_.token_file)  // SHA-256 of "tok".
      << "- {name: n, sha256: 1a7674eb4ee78df7e1ac439a93c3fa8e3c945784d4dec9fd8e3011738b2f1d62, runs: [\"\"], scopes: "
         "[put]}\n";
  auto access = AccessControl::Create(config_.token_file, Clock::Real(), [](const absl::Status&) {});
  ASSERT_OK(access);
  access_ = *std::move(access);
  absl::Notification begun, open;
  std::atomic<int> here{0};
  Start({.threads = 2, .threads_of_an_owner = 1, .waiting_of_an_owner = 1},
        {{"Seal", [&](ServiceContext&, const UnaryCaller&, grpc::ByteBuffer&) {
            if (++here == 1) begun.Notify();
            open.WaitForNotification();
            return Answer(0);
          }}});
  const auto seal = [&](const char* scheme) {
    return std::async(std::launch::async, [this, scheme] {
      const auto call = NewCall();
      call->AddMetadata("authorization", absl::StrCat(scheme, " tok"));
      const absl::Status status = Seal(*call);
      return status;
    });
  };
  auto first = seal("Bearer");
  begun.WaitForNotification();
  // While the first call runs, its token may have one more call waiting. One of these two waits, so the other is
  // rejected: the spelling of "Bearer" does not make them another owner's.
  auto second = seal("bearer"), third = seal("BEARER");
  const auto rejected = [&] { return Counted("routing_replay_quota_rejections_total{quota=\"control_calls\"}"); };
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (rejected() == 0 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(rejected(), 1);
  EXPECT_EQ(here, 1);
  open.Notify();
  EXPECT_OK(first.get());
  const absl::Status two = second.get(), three = third.get();
  EXPECT_TRUE(two.ok() != three.ok()) << two << three;
  EXPECT_THAT(two.ok() ? three : two, Fails(kExhausted, Reason::kOverBudget));
}

TEST_F(UnaryCallTest, ARequestThatIsTooLongIsRejectedBeforeItWaits) {
  absl::Notification begun, open;
  Start({.threads = 1}, {{"Seal", [&](ServiceContext&, const UnaryCaller&, grpc::ByteBuffer&) {
                            begun.Notify();
                            open.WaitForNotification();
                            return Answer(0);
                          }}});
  const auto holding = NewCall();
  auto held = std::async(std::launch::async, [&] { return Seal(*holding); });
  begun.WaitForNotification();
  v1::SealRequest request;
  request.set_run(std::string(kMaxControlBytes, 'r'));
  EXPECT_THAT(Seal(*NewCall(), request), Fails(kExhausted, Reason::kLength));
  open.Notify();
  EXPECT_OK(held.get());
}

TEST_F(UnaryCallTest, AnAnswerThatIsNotTakenIsHeldForStallTimeoutAndCountedUntilThen) {
  config_.stall_timeout = std::chrono::seconds(1);
  config_.max_streams = 1;
  Start({}, {{"List", [](ServiceContext&, const UnaryCaller&, grpc::ByteBuffer&) { return Answer(1 << 20); }}});
  testing::Http2Connection connection(address_, /*stream_window=*/0);
  std::vector<uint32_t> calls;
  for (int i = 0; i < 3; ++i) {
    calls.push_back(connection.StartCall("List", ""));
    connection.Send(calls.back(), testing::GrpcMessage(v1::ListRequest()), milliseconds(1));
  }
  const auto all_ended = [&] {
    return std::all_of(calls.begin(), calls.end(), [&](uint32_t call) { return connection.Ended(call); });
  };
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!all_ended() && std::chrono::steady_clock::now() < end) connection.Listen(milliseconds(10));
  EXPECT_TRUE(all_ended());
  EXPECT_FALSE(connection.closed());
  EXPECT_EQ(Counted("routing_replay_rpcs_total{code=\"OK\",method=\"List\"}"), 2);
  EXPECT_EQ(Counted("routing_replay_rpcs_total{code=\"RESOURCE_EXHAUSTED\",method=\"List\"}"), 1);
  // The ended calls no longer count for their connection, so another one may begin.
  calls = {connection.StartCall("List", "")};
  connection.Send(calls.back(), testing::GrpcMessage(v1::ListRequest()), milliseconds(1));
  while (!all_ended() && std::chrono::steady_clock::now() < end) connection.Listen(milliseconds(10));
  EXPECT_EQ(Counted("routing_replay_rpcs_total{code=\"OK\",method=\"List\"}"), 3);
}

// A store that is slow to create a run.
class SlowKeeper final : public RunKeeper {
 public:
  explicit SlowKeeper(ByteBudget& budget) : budget_(budget) {}
  std::string name() const override { return "slow"; }
  DurabilityLevels durability() const override { return {}; }
  void Begin() override {}
  void End() override {}
  absl::StatusOr<std::shared_ptr<BlockHome>> Create(const RunInfo&) override {
    std::this_thread::sleep_for(milliseconds(30));
    return std::make_shared<MemoryHome>(std::make_shared<RunUsage>(budget_));
  }
  absl::Status Drop(absl::string_view) override { return absl::OkStatus(); }

 private:
  ByteBudget& budget_;
};

TEST_F(UnaryCallTest, RunsThatAreMadeAtOnceAreCountedOneAfterTheOther) {
  auto slow = NewKeptStore({.budget = &budget_}, std::make_shared<SlowKeeper>(budget_), {});
  ASSERT_OK(slow);
  store_ = *std::move(slow);
  config_.max_runs = 3;
  const auto& all = ControlMethods();
  const auto open =
      std::find_if(all.begin(), all.end(), [](const auto& method) { return std::string("OpenRun") == method.name; });
  Start({}, {*open});
  std::vector<std::future<absl::Status>> calls;
  for (int i = 0; i < 8; ++i) {
    calls.push_back(std::async(std::launch::async, [this, i] {
      v1::OpenRunRequest request;
      request.set_run(absl::StrCat("run-", i));
      request.mutable_geometry()->set_num_layers(1);
      request.mutable_geometry()->add_moe_layer_ids(0);
      request.mutable_geometry()->add_num_experts(8);
      request.mutable_geometry()->add_top_k(1);
      v1::OpenRunResponse response;
      return FromGrpcStatus(stub_->OpenRun(NewCall().get(), request, &response));
    }));
  }
  int made = 0;
  for (auto& call : calls) {
    const absl::Status status = call.get();
    made += status.ok() ? 1 : 0;
    if (!status.ok()) {
      EXPECT_THAT(status, Fails(kExhausted, Reason::kOverBudget));
    }
  }
  EXPECT_EQ(made, 3);
  EXPECT_EQ(*store_->CountRuns(), 3);
}

}  // namespace
}  // namespace routing_replay::server
