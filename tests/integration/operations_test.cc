// The operations port of a server in use.
#include <grpcpp/create_channel.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/wire/mutex.h"
#include "routing_replay/v1/routing_replay.grpc.pb.h"
#include "server/log/event_log.h"
#include "server/operations/metrics.h"
#include "tests/integration/chaos_routes.h"
#include "tests/integration/fixture.h"
#include "tests/support/http_client.h"
#include "tests/support/redis/redis_process.h"
#include "tests/support/scratch_directory.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

// Names that dashboards, alerts and other projects' tests rely on.
const char* const kAlways[] = {"appends_total",
                               "append_rows_total",
                               "append_size_bytes_bucket",
                               "ingest_bytes_total",
                               "trimmed_rows_total",
                               "conflicting_rows_total",
                               "late_rows_total",
                               "unrecorded_rows_total",
                               "unverified_rows_total",
                               "credits_total",
                               "credit_rejections_total",
                               "reads_total",
                               "read_samples_total{status=\"OK\"}",
                               "egress_bytes_total",
                               "egress_table_bytes_total",
                               "expired_samples_total",
                               "build_info{version=",
                               "start_time_seconds",
                               "draining 0",
                               "rpcs_total{code=\"OK\",method=\"Put\"} 1",
                               "rpcs_total{code=\"NOT_FOUND\",method=\"OpenRun\"} 1",
                               "rpc_duration_seconds_bucket{method=\"Read\",le=\"10\"} 1",
                               "rpcs_in_flight{method=\"Read\"} 0",
                               "memory_budget_bytes",
                               "memory_used_bytes",
                               "memory_credit_bytes 0",
                               "log_lines_dropped_total 0",
                               "token_file_rejected 0",
                               "token_file_reload_failures_total 0",
                               "runs 1",
                               "samples 1",
                               "stored_bytes",
                               "newest_weight_version{operation=\"put\"} 7",
                               "newest_weight_version{operation=\"get\"} 7",
                               "weight_version_lag 0",
                               "ready 1",
                               "store_healthy 1"};

// Metrics with the usual names of process metrics.
const char* const kOfTheProcess[] = {
    "process_cpu_seconds_total",    "process_open_fds",           "process_max_fds", "process_resident_memory_bytes",
    "process_virtual_memory_bytes", "process_start_time_seconds", "process_threads"};

class OperationsTest : public ServerTest {
 protected:
  void Start(ServerConfig config = {}) {
    config.operations_listen = "127.0.0.1:0";
    StartServer(std::move(config));
  }
  HttpAnswer Get(const std::string& path, const std::string& headers = "") {
    return HttpGet(server_->operations_address(), path, headers);
  }
};

TEST_F(OperationsTest, MetricsTellWhatWentOn) {
  Start();
  const auto run = OpenRun("run", ChaosGeometry());
  const RandomRoutes routes = MakeRandomRoutes(ChaosGeometry(), 10, 1);
  ASSERT_OK(PutRows(*run, routes, {0, 10}, {.sample = "a-sample", .weight_version = 7, .seal_num_tokens = 11}));
  ExpectRows(*run, "a-sample", routes, {{0, 10}});
  EXPECT_FALSE(client_->JoinRun("nobody").ok());
  const std::string metrics = "\n" + Get("/metrics").body;
  for (const char* name : kAlways) {
    EXPECT_NE(metrics.find(absl::StrCat("\nrouting_replay_", name)), std::string::npos) << name;
  }
  for (const char* name : kOfTheProcess) {
    EXPECT_NE(metrics.find(absl::StrCat("\n", name, " ")), std::string::npos) << name;
  }
  EXPECT_EQ(metrics.find("a-sample"), std::string::npos);
  EXPECT_EQ(metrics.find("\"run\""), std::string::npos);
  // Clients get only counters, not gauges.
  ASSERT_OK_AND_ASSIGN(const ServerSummary summary, client_->GetServerInfo());
  const std::map<std::string, int64_t> counters(summary.counters.begin(), summary.counters.end());
  EXPECT_EQ(counters.at("routing_replay_rpcs_total{code=\"NOT_FOUND\",method=\"OpenRun\"}"), 1);
  EXPECT_EQ(counters.count("routing_replay_memory_credit_bytes"), 0u);
}

TEST_F(OperationsTest, ADrainIsToldAndServedThrough) {
  Start();
  EXPECT_EQ(Get("/readyz").code, 200);
  server_->Drain();
  EXPECT_EQ(Get("/readyz").code, 503);
  EXPECT_EQ(Get("/healthz").code, 200);
  EXPECT_OK(client_->OpenRun("run", ChaosGeometry()));
  const std::string operations = server_->operations_address();
  server_->Shutdown(std::chrono::milliseconds(0));
  EXPECT_EQ(HttpGet(operations, "/healthz").code, 0);
}

TEST_F(OperationsTest, AStoreThatIsAwayMakesTheServerUnreadyAndLeavesItAlive) {
  if (!NoRedisReason().empty()) GTEST_SKIP() << NoRedisReason();
  ASSERT_OK_AND_ASSIGN(const auto redis, RedisProcess::Start());
  ServerConfig config;
  config.store = absl::StrCat("redis://127.0.0.1:", redis->ports().client);
  Start(std::move(config));
  const auto wait_for = [&](int code) {
    const auto deadline = std::chrono::steady_clock::now() + kCallTimeout;
    HttpAnswer answer = Get("/readyz");
    for (; answer.code != code && std::chrono::steady_clock::now() < deadline; answer = Get("/readyz")) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return answer;
  };
  EXPECT_EQ(wait_for(200).code, 200);
  redis->Kill();
  EXPECT_EQ(wait_for(503).body, "store: UNAVAILABLE: no Redis server answers\n");
  EXPECT_EQ(Get("/healthz").code, 200);
  EXPECT_NE(Get("/metrics").body.find("\nrouting_replay_store_healthy 0\n"), std::string::npos);
  EXPECT_NE(Get("/metrics").body.find("\nrouting_replay_ready 0\n"), std::string::npos);
  EXPECT_EQ(Get("/statusz").code, 200);
  ASSERT_OK(redis->Restart());
  EXPECT_EQ(wait_for(200).code, 200);
  EXPECT_NE(Get("/metrics").body.find("\nrouting_replay_store_healthy 1\n"), std::string::npos);
  EXPECT_NE(Get("/metrics").body.find("\nrouting_replay_ready 1\n"), std::string::npos);
}

TEST_F(OperationsTest, TokensAreAskedForWhereRunsAreNamed) {
  const ScratchDirectory directory;
  const std::string file = directory.path() + "/tokens";
  // The hashes are the SHA-256 of the tokens "reader", "boss" and "tenant".
  std::ofstream(file) << R"([
    {"name": "r", "sha256": "3d0941964aa3ebdcb00ccef58b1bb399f9f898465e9886d5aec7f31090a0fb30", "runs": [""], "scopes": ["read"]},
    {"name": "b", "sha256": "a5e7c002443743c5836758c7d1cd8ddefd9fcf2061daa0efaac683fb99966057", "runs": [""], "scopes": ["admin"]},
    {"name": "t", "sha256": "e9da86d351cf9a7642d8c50195c3f466220911a15c177809bd1161a51e8c5f24", "runs": ["t-"], "scopes": ["admin"]}
  ])";
  ServerConfig config;
  config.token_file = file;
  config.operations_listen = "127.0.0.1:0";
  config.listen = {"127.0.0.1:0"};
  ASSERT_OK_AND_ASSIGN(server_, Server::Start(config));
  for (const char* path : {"/healthz", "/readyz", "/metrics"}) EXPECT_EQ(Get(path).code, 200) << path;
  for (const char* path : {"/statusz", "/api/v1/status"}) {
    EXPECT_EQ(Get(path).code, 401) << path;
    EXPECT_EQ(Get(path, "Authorization: Bearer reader\r\n").code, 200) << path;
    EXPECT_EQ(Get(path, "Authorization: Bearer boss\r\n").code, 200) << path;
    // An administrator of one tenant must not see the runs of others.
    EXPECT_NE(Get(path, "Authorization: Bearer tenant\r\n").code, 200) << path;
  }
}

// A server that everybody can reach without a token warns of this, because the user may have forgotten --token-file.
TEST_F(OperationsTest, OpenAccessIsToldOf) {
  ServerConfig config;
  config.listen = {"0.0.0.0:0"};
  config.insecure = true;
  ASSERT_OK_AND_ASSIGN(server_, Server::Start(config));
  EXPECT_THAT(server_->warnings(), ::testing::ElementsAre(::testing::HasSubstr("--token-file")));
  config.listen = {"127.0.0.1:0"};
  ASSERT_OK_AND_ASSIGN(server_, Server::Start(config));
  EXPECT_THAT(server_->warnings(), ::testing::IsEmpty());
}

// Collects the whole log during its lifetime.
class CapturedLog {
 public:
  CapturedLog() { StartLogging(LogFormat::kJson, &out_); }
  ~CapturedLog() { StartLogging(LogFormat::kText); }
  // May only be called while no thread is logging.
  std::vector<nlohmann::json> Lines() const {
    std::vector<nlohmann::json> lines;
    for (const auto& line : absl::StrSplit(out_.str(), '\n', absl::SkipEmpty())) {
      lines.push_back(nlohmann::json::parse(std::string(line), nullptr, false));
    }
    return lines;
  }
  std::string text() const { return out_.str(); }

 private:
  std::ostringstream out_;
};

TEST_F(OperationsTest, ARejectedCallIsLoggedWithItsClientsIdentityAndNoIds) {
  CapturedLog log;
  Start();
  const auto stub =
      v1::RoutingReplay::NewStub(grpc::CreateChannel(server_->advertised(), grpc::InsecureChannelCredentials()));
  {
    grpc::ClientContext context;
    v1::SealRequest request;
    request.set_run("secret-run");
    request.set_sample("secret-sample");
    request.set_num_tokens(2);
    v1::SampleState state;
    EXPECT_EQ(stub->Seal(&context, request, &state).error_code(), grpc::StatusCode::NOT_FOUND);
  }
  {
    grpc::ClientContext context;
    v1::DropRunRequest request;
    request.set_run("secret\nrun\"}");
    v1::DropRunResponse response;
    EXPECT_FALSE(stub->DropRun(&context, request, &response).ok());
  }
  server_->Shutdown(std::chrono::milliseconds(0));
  EXPECT_EQ(log.text().find("secret"), std::string::npos) << log.text();
  const auto lines = log.Lines();
  ASSERT_EQ(lines.size(), 2u) << log.text();
  EXPECT_EQ(lines[0]["event"], "call_rejected");
  EXPECT_EQ(lines[0]["method"], "Seal");
  EXPECT_EQ(lines[0]["peer"].get<std::string>().rfind("ipv4:127.0.0.1:", 0), 0u);
  EXPECT_EQ(lines[1]["level"], "info");
}

// SHA-256 of "boss".
constexpr char kBoss[] = "a5e7c002443743c5836758c7d1cd8ddefd9fcf2061daa0efaac683fb99966057";

class GuardedOperationsTest : public OperationsTest {
 protected:
  void SetUp() override {
    WriteTokens("");
    ServerConfig config;
    config.token_file = file_;
    config.operations_listen = "127.0.0.1:0";
    config.listen = {"127.0.0.1:0"};
    ASSERT_OK_AND_ASSIGN(server_, Server::Start(config));
    const std::string token = directory_.path() + "/token";
    std::ofstream(token) << "boss\n";
    ASSERT_OK_AND_ASSIGN(client_,
                         Client::Connect({.endpoint = server_->advertised(), .security = {.token_file = token}}));
  }
  // Writes a file with one token, whose entry ends with `more`.
  void WriteTokens(const std::string& more) const {
    std::ofstream(file_ + ".new") << "- {name: the-boss, sha256: " << kBoss
                                  << ", runs: [\"\"], scopes: [put, read, admin]" << more << "}\n";
    ASSERT_EQ(std::rename((file_ + ".new").c_str(), file_.c_str()), 0);
  }
  const ScratchDirectory directory_;
  const std::string file_ = directory_.path() + "/tokens";
};

TEST_F(GuardedOperationsTest, ATokenFileThatIsRejectedIsAMetric) {
  CapturedLog log;
  const auto told = [&](const std::string& metric) {
    EXPECT_OK(client_->GetServerInfo());  // Any call makes the server check the file.
    return Get("/metrics").body.find(absl::StrCat("\nrouting_replay_token_file_", metric, "\n")) != std::string::npos;
  };
  EXPECT_TRUE(told("rejected 0"));
  EXPECT_TRUE(told("reload_failures_total 0"));
  WriteTokens(", expires: tomorrow");
  EXPECT_TRUE(told("rejected 1"));
  EXPECT_TRUE(told("reload_failures_total 1"));
  WriteTokens("");
  EXPECT_TRUE(told("rejected 0"));
  EXPECT_TRUE(told("reload_failures_total 1"));
  server_->Shutdown(std::chrono::milliseconds(0));
  const auto lines = log.Lines();
  ASSERT_EQ(lines.size(), 1u) << log.text();
  EXPECT_EQ(lines[0]["event"], "token_file_rejected");
  EXPECT_EQ(lines[0]["level"], "error");
  EXPECT_NE(lines[0]["message"].get<std::string>().find("tomorrow"), std::string::npos);
}

TEST_F(GuardedOperationsTest, WhatMakesOrDestroysIsAudited) {
  CapturedLog log;
  const auto run = OpenRun("run", ChaosGeometry());
  OpenRun("run", ChaosGeometry());  // The run exists.
  const RandomRoutes routes = MakeRandomRoutes(ChaosGeometry(), 10, 1);
  ASSERT_OK(PutRows(*run, routes, {0, 10}, {.sample = "a-sample", .group = 3}));
  ASSERT_OK(run->Truncate("a-sample", Producer::kRollout, 5, std::nullopt));
  ASSERT_OK(run->Release({"a-sample"}));
  ASSERT_OK(client_->OpenRun("run", ChaosGeometry(), {}, /*resume_at=*/3));
  ASSERT_OK(run->Drop());
  EXPECT_FALSE(run->Drop().ok());  // Nothing was dropped.
  server_->Shutdown(std::chrono::milliseconds(0));
  std::vector<std::string> actions;
  for (const auto& line : log.Lines()) {
    if (line["event"] != "audit") continue;
    actions.push_back(line["action"]);
    EXPECT_EQ(line["level"], "info");
    EXPECT_EQ(line["run"], "run");
    EXPECT_EQ(line["code"], "OK");
    EXPECT_EQ(line["token"], "the-boss");
    EXPECT_EQ(line["peer"].get<std::string>().rfind("ipv4:127.0.0.1:", 0), 0u);
  }
  EXPECT_THAT(actions, ::testing::ElementsAre("make_run", "truncate", "release", "resume_at", "drop_run"));
  EXPECT_EQ(log.text().find("a-sample"), std::string::npos);
}

TEST_F(GuardedOperationsTest, ARejectedCallNamesItsToken) {
  CapturedLog log;
  WriteTokens(", expires: 2001-01-01");
  EXPECT_FALSE(client_->GetServerInfo().ok());
  server_->Shutdown(std::chrono::milliseconds(0));
  const auto lines = log.Lines();
  ASSERT_EQ(lines.size(), 1u) << log.text();
  EXPECT_EQ(lines[0]["event"], "call_rejected");
  EXPECT_EQ(lines[0]["token"], "the-boss");
}

}  // namespace
}  // namespace routing_replay::testing
