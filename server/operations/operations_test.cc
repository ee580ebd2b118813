#include "server/operations/operations.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/log/event_log.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

// Two tokens: one that reads, one that administers.
absl::StatusOr<std::string> CheckToken(const HttpRequest&, absl::string_view authorization, ScopeSet any_of) {
  if (authorization == "Bearer boss" && any_of.overlaps(Scope::kAdmin)) return "the-boss";
  if (authorization == "Bearer reader" && any_of.overlaps(Scope::kRead)) return "a-reader";
  if (authorization == "Bearer reader") return absl::PermissionDeniedError("secret detail");
  return absl::UnauthenticatedError("who?");
}

class OperationsRoutesTest : public ::testing::Test {
 protected:
  OperationsRoutesTest() {
    readiness_.Change([](Readiness::State& state) { state.starting = false; });
    EXPECT_OK(SetLogLevel("info"));
  }
  HttpResponse Get(const std::string& path, const std::string& authorization = "Bearer reader") {
    return routes_.Answer({.method = "GET", .path = path, .authorization = authorization});
  }
  HttpResponse Post(const std::string& path, const std::string& authorization, const std::string& body) {
    return routes_.Answer({.method = "POST",
                           .path = path,
                           .authorization = authorization,
                           .content_type = "application/json",
                           .body = body});
  }

  Readiness readiness_;
  const OperationsRoutes routes_{readiness_, CheckToken, [] { return "m"; }, [] { return "{}"; }, [] { return "<p>"; }};
};

TEST_F(OperationsRoutesTest, WhatProbesAndPrometheusAskIsOpen) {
  EXPECT_EQ(Get("/healthz", "").code, 200);
  EXPECT_EQ(Get("/readyz", "").code, 200);
  EXPECT_EQ(Get("/metrics", "").body, "m");
  EXPECT_EQ(Get("/metrics", "").content_type, "text/plain; version=0.0.4; charset=utf-8");
}

TEST_F(OperationsRoutesTest, ReadyzSaysWhyNotAndHealthzDoesNotCare) {
  readiness_.Change([](Readiness::State& state) { state.store = absl::UnavailableError("no Redis server answers"); });
  EXPECT_EQ(Get("/readyz").code, 503);
  EXPECT_EQ(Get("/readyz").body, "store: UNAVAILABLE: no Redis server answers\n");
  EXPECT_EQ(Get("/healthz").code, 200);
  EXPECT_EQ(Get("/metrics").code, 200);
  readiness_.Change([](Readiness::State& state) { state.draining = true; });
  EXPECT_EQ(Get("/readyz").body, "draining\n");
  EXPECT_EQ(Get("/metrics").code, 200);
}

TEST_F(OperationsRoutesTest, BeforeTheStartTheProcessAloneIsLookedAt) {
  Readiness starting;
  const OperationsRoutes routes{starting, CheckToken, [] { return "m"; }, nullptr, nullptr};
  const auto code = [&](const char* path) { return routes.Answer({.method = "GET", .path = path}).code; };
  for (const char* path : {"/healthz", "/metrics"}) EXPECT_EQ(code(path), 200) << path;
  for (const char* path : {"/readyz", "/api/v1/status", "/statusz"}) EXPECT_EQ(code(path), 503) << path;
  // A server whose start fails drains before it has opened a store.
  starting.Change([](Readiness::State& state) { state.draining = true; });
  for (const char* path : {"/readyz", "/api/v1/status", "/statusz"}) EXPECT_EQ(code(path), 503) << path;
}

TEST_F(OperationsRoutesTest, WhatNamesRunsNeedsAToken) {
  for (const char* path : {"/api/v1/status", "/statusz", "/", "/api/v1/log-level", "/nothing"}) {
    EXPECT_EQ(Get(path, "").code, 401) << path;
    EXPECT_EQ(Get(path, "").headers.at(0).first, "WWW-Authenticate");
    EXPECT_EQ(Get(path, "Bearer other").code, 401) << path;
    EXPECT_NE(Get(path, "Bearer reader").code, 401) << path;
    EXPECT_NE(Get(path, absl::StrCat("Basic ", absl::Base64Escape("anybody:boss"))).code, 401) << path;
  }
  EXPECT_EQ(Get("/statusz").body, "<p>");
  EXPECT_EQ(Get("/api/v1/status").content_type, "application/json");
  EXPECT_EQ(Get("/nothing").code, 404);
  EXPECT_EQ(Get("/etc/passwd").code, 404);
  EXPECT_EQ(Get("/metrics/../statusz", "").code, 401);
}

// A page in an operator's browser can make it send an HTML form, which has other content types than JSON. So only JSON
// is accepted.
TEST_F(OperationsRoutesTest, TheLogLevelIsChangedByJsonAlone) {
  HttpRequest request{.method = "POST",
                      .path = "/api/v1/log-level",
                      .authorization = "Bearer boss",
                      .content_type = "text/plain",
                      .body = R"({"level":"debug"})"};
  EXPECT_EQ(routes_.Answer(request).code, 415);
  EXPECT_EQ(GetLogLevel(), "info");
  request.content_type = "application/json";
  EXPECT_EQ(routes_.Answer(request).code, 200);
}

TEST_F(OperationsRoutesTest, OnlyAnAdministratorChangesTheLogLevel) {
  const std::string debug = R"({"level":"debug"})";
  EXPECT_EQ(Post("/api/v1/log-level", "", debug).code, 401);
  const HttpResponse rejected = Post("/api/v1/log-level", "Bearer reader", debug);
  EXPECT_EQ(rejected.code, 403);
  EXPECT_EQ(rejected.body.find("secret detail"), std::string::npos);
  // Credentials that a browser adds by itself do not count for changes.
  EXPECT_EQ(Post("/api/v1/log-level", absl::StrCat("Basic ", absl::Base64Escape("a:boss")), debug).code, 401);
  EXPECT_EQ(GetLogLevel(), "info");
  EXPECT_EQ(Post("/api/v1/log-level", "Bearer boss", debug).body, debug + "\n");
  EXPECT_EQ(GetLogLevel(), "debug");
  EXPECT_EQ(Get("/api/v1/log-level").body, debug + "\n");
  for (const char* bad : {"", "debug", "[]", R"({"level":1})", R"({"level":"loud"})", R"({"level":"info")"}) {
    EXPECT_EQ(Post("/api/v1/log-level", "Bearer boss", bad).code, 400) << bad;
  }
  EXPECT_EQ(GetLogLevel(), "debug");
}

TEST_F(OperationsRoutesTest, WhoChangesTheLogLevelIsTold) {
  std::ostringstream log;
  StartLogging(LogFormat::kJson, &log);
  EXPECT_EQ(routes_
                .Answer({.method = "POST",
                         .path = "/api/v1/log-level",
                         .authorization = "Bearer boss",
                         .content_type = "application/json",
                         .peer = "10.1.2.3:4567",
                         .body = R"({"level":"error"})"})
                .code,
            200);
  StartLogging(LogFormat::kText);
  const auto line = nlohmann::json::parse(log.str());
  EXPECT_EQ(line["event"], "log_level_changed");
  EXPECT_EQ(line["from"], "info");
  EXPECT_EQ(line["to"], "error");
  EXPECT_EQ(line["peer"], "10.1.2.3:4567");
  EXPECT_EQ(line["token"], "the-boss");
}

TEST_F(OperationsRoutesTest, NoPageInABrowserChangesTheLogLevel) {
  HttpRequest request = {.method = "POST",
                         .path = "/api/v1/log-level",
                         .authorization = "Bearer boss",
                         .origin = "https://elsewhere.example",
                         .body = R"({"level":"debug"})"};
  EXPECT_EQ(routes_.Answer(request).code, 403);
  request.origin = "null";
  EXPECT_EQ(routes_.Answer(request).code, 403);
  EXPECT_EQ(GetLogLevel(), "info");
}

TEST_F(OperationsRoutesTest, ARejectionThatIsNoMatterOfTokensSaysHowToAsk) {
  const auto check = [](const HttpRequest& request, absl::string_view, ScopeSet) -> absl::StatusOr<std::string> {
    if (request.host == "evil.example") return absl::FailedPreconditionError("use another name");
    return "";
  };
  const OperationsRoutes routes{readiness_, check, [] { return "m"; }, [] { return "{}"; }, [] { return "<p>"; }};
  const HttpResponse rejected = routes.Answer({.method = "GET", .path = "/statusz", .host = "evil.example"});
  EXPECT_EQ(rejected.code, 403);
  EXPECT_EQ(rejected.body, "use another name\n");
  EXPECT_EQ(routes.Answer({.method = "GET", .path = "/metrics", .host = "evil.example"}).code, 200);
  EXPECT_EQ(routes.Answer({.method = "GET", .path = "/statusz", .host = "localhost"}).code, 200);
}

TEST_F(OperationsRoutesTest, NothingElseMayBeChanged) {
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"}) {
    EXPECT_EQ(routes_.Answer({.method = method, .path = "/metrics", .authorization = "Bearer boss"}).code, 405);
  }
  EXPECT_EQ(routes_.Answer({.method = "HEAD", .path = "/healthz"}).code, 200);
}

TEST(ReadinessTest, StartsServesWithAHealthyStoreAndDrains) {
  std::vector<std::string> verdicts;
  Readiness readiness([&](const absl::Status& verdict) { verdicts.emplace_back(verdict.message()); });
  const auto verdict = [&] { return readiness.Get().Verdict(); };
  const auto set_store = [&](const absl::Status& health) {
    readiness.Change([&](Readiness::State& state) { state.store = health; });
  };
  EXPECT_EQ(verdict().message(), "starting");
  readiness.Change([](Readiness::State& state) { state.starting = false; });
  EXPECT_OK(verdict());
  set_store(absl::OkStatus());
  set_store(absl::UnavailableError("nobody there"));
  set_store(absl::UnavailableError("nobody there"));
  EXPECT_EQ(verdict().message(), "store: UNAVAILABLE: nobody there");
  set_store(absl::OkStatus());
  readiness.Change([](Readiness::State& state) { state.draining = true; });
  EXPECT_EQ(verdict().message(), "draining");
  EXPECT_EQ(verdicts, (std::vector<std::string>{"", "store: UNAVAILABLE: nobody there", "", "draining"}));
}

class OperatorCheckTest : public ::testing::Test {
 protected:
  absl::StatusCode Ask(const HttpRequest& request, ScopeSet any_of) const {
    return MakeOperatorCheck(config_, open_)(request, request.authorization, any_of).status().code();
  }
  absl::StatusCode Read(const std::string& host) const { return Ask({.host = host}, Scope::kRead | Scope::kAdmin); }

  static constexpr auto kOk = absl::StatusCode::kOk, kRejected = absl::StatusCode::kFailedPrecondition;
  const AccessControl open_;
  ServerConfig config_;
};

// The port does not ask for certificates, so its clients cannot be identified.
TEST_F(OperatorCheckTest, WithCertificatesAloneStrangersAreRejected) {
  const HttpRequest here = {.from_here = true};
  config_.operations_listen = "0.0.0.0:7401";
  EXPECT_EQ(Ask(here, Scope::kAdmin), kOk);
  config_.tls.client_ca = "ca.crt";
  EXPECT_EQ(Ask(here, Scope::kAdmin), kRejected);
  EXPECT_EQ(Ask({.authorization = "Bearer any", .from_here = true}, Scope::kRead), kRejected);
  config_.operations_listen = "127.0.0.1:7401";
  EXPECT_EQ(Ask(here, Scope::kAdmin), kOk);
}

TEST_F(OperatorCheckTest, WithoutTokensThePageOfAnotherNameSeesNothing) {
  config_.listen = {"worker-3:7400", "unix:/run/rr.sock"};
  config_.advertise = "rr.example.org:7400";
  config_.operations_listen = "127.0.0.1:7401";
  for (const char* host : {"", "localhost:7401", "LocalHost.:7401", "127.0.0.1:7401", "[::1]:7401", "[::1]",
                           "10.1.2.3:7401", "[fd00::1]:7401", "10.1.2.3", "rr.example.org", "Worker-3:7401"}) {
    EXPECT_EQ(Read(host), kOk) << host;
  }
  for (const char* host : {"evil.example", "evil.example:7401", "localhost.evil.example:7401", "127.0.0.1.evil.example",
                           "rr.example.org.evil.example", "127.0.0.1@evil.example", "[evil.example]:7401", "::1"}) {
    EXPECT_EQ(Read(host), kRejected) << host;
  }
  EXPECT_EQ(Ask({.host = "evil.example", .from_here = true}, Scope::kAdmin), kRejected);
}

TEST_F(OperatorCheckTest, WithoutTokensChangesComeFromThisMachine) {
  config_.operations_listen = "0.0.0.0:7401";
  EXPECT_EQ(Ask({.host = "10.1.2.3:7401"}, Scope::kAdmin), kRejected);
  EXPECT_EQ(Read("10.1.2.3:7401"), kOk);
  EXPECT_EQ(Ask({.host = "localhost:7401", .from_here = true}, Scope::kAdmin), kOk);
}

}  // namespace
}  // namespace routing_replay::testing
