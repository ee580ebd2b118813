// Checks on a real server what each token permits.
#include <set>

#include "absl/strings/str_replace.h"
#include "server/security/access_control.h"
#include "tests/security/guarded_server.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

using grpc::StatusCode;

const std::vector<TestToken> kTenants = {{.token = "a", .runs = "a-"}, {.token = "b", .runs = "b-"}};

std::string CallRow(const AnyCall& call, const grpc::Status& status) {
  return call.name + ": " + std::to_string(status.error_code()) + " " + status.error_message();
}

ScopeSet Scopes(int bits) {
  ScopeSet scopes;
  for (const ScopeName& scope : kScopeNames) {
    if ((bits & static_cast<int>(scope.scope)) != 0) scopes = scopes | scope.scope;
  }
  return scopes;
}

std::string YamlOf(ScopeSet scopes) {
  std::string names;
  for (const ScopeName& scope : kScopeNames) {
    if (scopes.overlaps(scope.scope)) names += (names.empty() ? "" : ", ") + std::string(scope.name);
  }
  return names;
}

TEST(AccessTest, EveryCallOfTheServiceHasARule) {
  std::set<std::string> called;
  for (const AnyCall& call : EveryCall()) called.insert(call.name.substr(0, call.name.find(' ')));
  const auto* service = v1::SealRequest::descriptor()->file()->FindServiceByName("RoutingReplay");
  ASSERT_NE(service, nullptr);
  EXPECT_EQ(called.size(), static_cast<size_t>(service->method_count()));
  for (int i = 0; i < service->method_count(); ++i) EXPECT_TRUE(called.count(service->method(i)->name()));
  ASSERT_EQ(EveryCall().size(), CallRules().size());
  for (size_t i = 0; i < EveryCall().size(); ++i) EXPECT_EQ(EveryCall()[i].name, CallRules()[i].call);
}

TEST(AccessTest, WithoutAKnownTokenNothingGoes) {
  GuardedServer server({{.token = "known"}});
  const auto stub = v1::RoutingReplay::NewStub(server.NewChannel());
  ASSERT_TRUE(OpenRun(*stub, "known", "run").ok());
  for (const char* token : {"", "unknown", "know", "knownn"}) {
    for (const AnyCall& call : EveryCall()) {
      const grpc::Status status = call.make(*stub, *NewCall(token), "run");
      EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED) << CallRow(call, status);
    }
  }
  // A call that carries two tokens is treated like a call without a token.
  auto context = NewCall("known");
  context->AddMetadata("authorization", "Bearer known");
  v1::ServerInfo info;
  EXPECT_EQ(stub->GetServerInfo(context.get(), {}, &info).error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(stub->GetServerInfo(NewCall("known").get(), {}, &info).ok());
  EXPECT_GT((*info.mutable_counters())["routing_replay_access_rejections_total{reason=\"unauthenticated\"}"], 0u);
}

TEST(AccessTest, EachScopeOpensItsCallsAndNoOthers) {
  std::vector<TestToken> tokens;
  for (int bits = 1; bits < 8; ++bits) tokens.push_back({"t" + std::to_string(bits), "\"\"", YamlOf(Scopes(bits))});
  GuardedServer server(tokens);
  const auto stub = v1::RoutingReplay::NewStub(server.NewChannel());
  for (int bits = 1; bits < 8; ++bits) {
    for (size_t i = 0; i < EveryCall().size(); ++i) {
      const std::string run = std::to_string(bits) + "/" + std::to_string(i);
      ASSERT_TRUE(OpenRun(*stub, "t7", run).ok());
      v1::AppendAck ack;
      ASSERT_TRUE(stub->Put(NewCall("t7").get(), OneAppend(run, "sample", 3), &ack).ok());
      const grpc::Status status = EveryCall()[i].make(*stub, *NewCall("t" + std::to_string(bits)), run);
      const bool allowed = CallRules()[i].any_of.overlaps(Scopes(bits));
      EXPECT_EQ(status.error_code(), allowed ? StatusCode::OK : StatusCode::PERMISSION_DENIED)
          << bits << " " << CallRow(EveryCall()[i], status);
    }
  }
}

// The parts of an answer that a caller can see, without the run's name.
std::string Seen(const grpc::Status& status, const std::string& run) {
  return std::to_string(status.error_code()) +
         absl::StrReplaceAll(status.error_message() + status.error_details(), {{run, "RUN"}});
}

// Code, text and details must not depend on whether another tenant's run exists, and must equal those for a missing run
// of the caller. Names have the same length because details include lengths.
TEST(AccessTest, RunsOfOthersAnswerAsRunsThatAreNotThere) {
  GuardedServer server(kTenants);
  const auto stub = v1::RoutingReplay::NewStub(server.NewChannel());
  ASSERT_TRUE(OpenRun(*stub, "b", "b-there").ok());
  v1::AppendAck ack;
  ASSERT_TRUE(stub->Put(NewCall("b").get(), OneAppend("b-there", "sample", 3), &ack).ok());
  for (const AnyCall& call : EveryCall()) {
    if (call.name == "ListRuns" || call.name == "GetServerInfo" || call.name == "OpenDirect") continue;
    const grpc::Status there = call.make(*stub, *NewCall("a"), "b-there");
    const grpc::Status none = call.make(*stub, *NewCall("a"), "b-none-");
    EXPECT_EQ(there.error_code(), StatusCode::NOT_FOUND) << CallRow(call, there);
    EXPECT_EQ(Seen(there, "b-there"), Seen(none, "b-none-")) << call.name;
    if (call.name == "OpenRun with a geometry") continue;  // This call would create the run.
    const grpc::Status own = call.make(*stub, *NewCall("a"), "a-none-");
    EXPECT_EQ(Seen(there, "b-there"), Seen(own, "a-none-")) << call.name;
  }
  v1::ListRunsResponse runs;
  ASSERT_TRUE(stub->ListRuns(NewCall("a").get(), {}, &runs).ok());
  EXPECT_EQ(runs.runs_size(), 0);
  ASSERT_TRUE(stub->ListRuns(NewCall("b").get(), {}, &runs).ok());
  ASSERT_EQ(runs.runs_size(), 1);
  EXPECT_EQ(runs.runs(0).samples(), 1u);
}

// gRPC caches the result of its own authentication per connection; here each call must be checked.
TEST(AccessTest, TokensOfOneConnectionDoNotMix) {
  GuardedServer server(kTenants);
  const auto stub = v1::RoutingReplay::NewStub(server.NewChannel());
  for (int i = 0; i < 3; ++i) {
    for (const std::string own : {"a", "b"}) {
      const std::string other = own == "a" ? "b" : "a";
      EXPECT_TRUE(OpenRun(*stub, own, own + "-1").ok());
      EXPECT_EQ(OpenRun(*stub, own, other + "-1").error_code(), StatusCode::NOT_FOUND);
    }
  }
}

TEST(AccessTest, ARevokedTokenEndsItsStreamAtTheNextMessage) {
  GuardedServer server(std::vector<TestToken>{{.token = "keeps"}, {.token = "goes"}});
  const auto stub = v1::RoutingReplay::NewStub(server.NewChannel());
  ASSERT_TRUE(OpenRun(*stub, "keeps", "run").ok());
  const auto keeps_call = NewCall("keeps"), goes_call = NewCall("goes");
  const auto keeps = stub->Append(keeps_call.get());
  const auto goes = stub->Append(goes_call.get());
  v1::AppendRequest ask;
  ask.set_run("run");
  ask.set_want_bytes(100);
  v1::AppendResponse answer;
  for (auto* stream : {keeps.get(), goes.get()}) {
    ASSERT_TRUE(stream->Write(ask) && stream->Read(&answer));
    EXPECT_EQ(answer.credit().granted_bytes(), 100u);
  }
  server.SetTokens({{.token = "keeps"}});
  ASSERT_TRUE(goes->Write(OneAppend("run", "sample", 3)));
  EXPECT_FALSE(goes->Read(&answer));
  EXPECT_EQ(goes->Finish().error_code(), StatusCode::UNAUTHENTICATED);
  v1::StatRequest stat;
  stat.set_run("run");
  stat.add_samples("sample");
  v1::StatResponse state;
  ASSERT_TRUE(stub->Stat(NewCall("keeps").get(), stat, &state).ok());
  EXPECT_EQ(state.found_size(), 0);
  ASSERT_TRUE(keeps->Write(OneAppend("run", "sample", 3)) && keeps->Read(&answer));
  EXPECT_EQ(answer.ack().committed_rows(), 3u);
}

TEST(AccessTest, ARevokedTokenEndsItsReads) {
  GuardedServer server(std::vector<TestToken>{{.token = "keeps"}, {.token = "goes"}});
  const auto stub = v1::RoutingReplay::NewStub(server.NewChannel());
  ASSERT_TRUE(OpenRun(*stub, "keeps", "run").ok());
  v1::AppendAck ack;
  constexpr int kRows = 1 << 20;
  ASSERT_TRUE(stub->Put(NewCall("keeps").get(), OneAppend("run", "long", kRows), &ack).ok());
  v1::AppendRequest later = OneAppend("run", "later", 3);
  ASSERT_TRUE(stub->Put(NewCall("keeps").get(), later, &ack).ok());
  // `all` is a read that sends for a long time, because its reader is slow; `wait` is a read that waits for rows.
  v1::ReadRequest all, wait;
  for (v1::ReadRequest* request : {&all, &wait}) request->set_run("run");
  for (int i = 0; i < 200; ++i) all.add_samples()->set_sample("long");
  wait.set_wait(true);
  wait.add_samples()->set_sample("later");
  wait.mutable_samples(0)->set_num_tokens(7);
  const auto all_call = NewCall("goes"), wait_call = NewCall("goes");
  const auto sending = stub->Read(all_call.get(), all);
  const auto waiting = stub->Read(wait_call.get(), wait);
  v1::ReadResponse response;
  ASSERT_TRUE(sending->Read(&response));
  v1::ServerInfo info;
  do {
    ASSERT_TRUE(stub->GetServerInfo(NewCall("keeps").get(), {}, &info).ok());
  } while ((*info.mutable_counters())["routing_replay_reads_total"] < 2);
  server.SetTokens({{.token = "keeps"}});
  later.mutable_append()->set_row_start(3);
  ASSERT_TRUE(stub->Put(NewCall("keeps").get(), later, &ack).ok());
  EXPECT_EQ(ack.committed_rows(), 6u);
  EXPECT_FALSE(waiting->Read(&response));
  EXPECT_EQ(waiting->Finish().error_code(), StatusCode::UNAUTHENTICATED);
  while (sending->Read(&response)) {
  }
  EXPECT_EQ(sending->Finish().error_code(), StatusCode::UNAUTHENTICATED);
}

// Several runs on one stream: permission must be checked for each message.
TEST(AccessTest, AStreamIsCheckedForEachMessagesRun) {
  GuardedServer server(std::vector<TestToken>{{.token = "a", .runs = "a-"}, {.token = "root"}});
  const auto stub = v1::RoutingReplay::NewStub(server.NewChannel());
  for (const char* run : {"a-1", "b-1"}) ASSERT_TRUE(OpenRun(*stub, "root", run).ok());
  const auto call = NewCall("a");
  const auto stream = stub->Append(call.get());
  v1::AppendRequest first = OneAppend("a-1", "own", 3);
  first.clear_payload();
  first.mutable_append()->clear_tensor();
  first.mutable_append()->set_rows(0);
  first.set_want_bytes(100);
  v1::AppendResponse answer;
  ASSERT_TRUE(stream->Write(first) && stream->Read(&answer));
  ASSERT_TRUE(stream->Write(OneAppend("b-1", "theirs", 3)) && stream->Read(&answer));
  EXPECT_EQ(answer.ack().error().code(), StatusCode::NOT_FOUND);
  // A rejected message gets no credit, whether it was parsed or not.
  v1::AppendRequest wish = OneAppend("b-1", "theirs", 3);
  wish.set_want_bytes(64 << 20);
  v1::AppendRequest malformed = wish;
  malformed.mutable_append()->mutable_tensor()->set_encoding(static_cast<v1::TensorPayload::Encoding>(99));
  v1::ServerInfo info;
  for (const v1::AppendRequest& request : {wish, malformed}) {
    ASSERT_TRUE(stream->Write(request) && stream->Read(&answer));
    EXPECT_NE(answer.ack().error().code(), StatusCode::OK);
    EXPECT_EQ(answer.credit().granted_bytes(), 0u);
    EXPECT_EQ(answer.credit().rejection().code(), StatusCode::NOT_FOUND);
    ASSERT_TRUE(stub->GetServerInfo(NewCall("root").get(), {}, &info).ok());
    EXPECT_LE(info.reserved_bytes(), 1000u);  // The sample of the first message, and its credit.
  }
  // Later messages without a name belong to the same run, and are rejected, too.
  ASSERT_TRUE(stream->Write(OneAppend("", "theirs", 3)) && stream->Read(&answer));
  EXPECT_EQ(answer.ack().error().code(), StatusCode::NOT_FOUND);
  ASSERT_TRUE(stream->Write(OneAppend("a-1", "own", 3)) && stream->Read(&answer));
  EXPECT_EQ(answer.ack().committed_rows(), 3u);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

}  // namespace
}  // namespace routing_replay::testing
