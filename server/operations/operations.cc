#include "server/operations/operations.h"

#include <arpa/inet.h>
#include <prometheus/text_serializer.h>
#include <nlohmann/json.hpp>

#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/wire/security.h"
#include "proto/wire/status_macros.h"
#include "server/log/event_log.h"

namespace routing_replay::server {
namespace {

using nlohmann::json;

constexpr char kJson[] = "application/json";
constexpr char kLogLevelPath[] = "/api/v1/log-level";

HttpResponse Text(int code, const std::string& text) { return {.code = code, .body = text + "\n"}; }

HttpResponse LogLevelNow() {
  return {.content_type = kJson, .body = json{{"level", std::string(GetLogLevel())}}.dump() + "\n"};
}

HttpResponse ChangeLogLevel(const HttpRequest& request, const std::string& token) {
  // Protects against web pages. A browser that sends no Origin header sends this content type only after a preflight
  // request, which this port does not answer.
  if (!absl::StartsWithIgnoreCase(request.content_type, kJson)) {
    return Text(415, "Content-Type must be application/json");
  }
  const json asked = json::parse(request.body, nullptr, /*allow_exceptions=*/false);
  if (!asked.is_object() || !asked.contains("level") || !asked["level"].is_string()) {
    return Text(400, R"(the body must be a JSON object such as {"level":"debug"})");
  }
  const std::string before(GetLogLevel());
  const absl::Status status = SetLogLevel(asked["level"].get<std::string>());
  if (!status.ok()) return Text(400, std::string(status.message()));
  LogFields fields = {{"from", before}, {"to", std::string(GetLogLevel())}, {"peer", request.peer}};
  if (!token.empty()) fields.emplace_back("token", token);
  // Logs the change as a warning, or as an error if the new level hides warnings, so that the line always appears.
  LogEvent(IsLogged(LogLevel::kWarning) ? LogLevel::kWarning : LogLevel::kError, "log_level_changed", "", fields);
  return LogLevelNow();
}

// Accepts basic authentication, for browsers: the password is the token, and the name is ignored.
std::string BearerOf(const std::string& authorization) {
  absl::string_view rest = authorization;
  std::string pair;
  if (!absl::ConsumePrefix(&rest, "Basic ") || !absl::Base64Unescape(rest, &pair)) return authorization;
  const size_t colon = pair.find(':');
  return colon == std::string::npos ? "" : absl::StrCat("Bearer ", pair.substr(colon + 1));
}

HttpResponse Rejection(const absl::Status& status, bool post) {
  if (absl::IsFailedPrecondition(status)) return Text(403, std::string(status.message()));
  const absl::string_view scopes = post ? "admin" : "read or admin";
  const std::string needed = absl::StrCat("this needs a token with the scope ", scopes, " on every run");
  if (!absl::IsUnauthenticated(status)) return Text(403, needed);
  HttpResponse response = Text(401, needed);
  response.headers.emplace_back("WWW-Authenticate", R"(Basic realm="routing-replay: the token is the password")");
  return response;
}

// Returns the host of an address in lower case, without port, brackets and a dot at the end: "name" for "Name.:7401",
// "::1" for "[::1]:7401".
std::string HostOf(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon != absl::string_view::npos && address.find(']', colon) == absl::string_view::npos) {
    address = address.substr(0, colon);
  }
  if (absl::ConsumePrefix(&address, "[")) absl::ConsumeSuffix(&address, "]");
  absl::ConsumeSuffix(&address, ".");
  return absl::AsciiStrToLower(address);
}

bool IsIpAddress(const std::string& host) {
  in6_addr address;  // Large enough for IPv4 and IPv6.
  return inet_pton(AF_INET, host.c_str(), &address) == 1 || inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

// The host names that the URL of a request to a server without tokens may have.
std::set<std::string> NamesOf(const ServerConfig& config) {
  std::set<std::string> names = {"", "localhost"};
  for (const std::string& address : config.listen) {
    if (!absl::StartsWith(address, "unix:")) names.insert(HostOf(address));
  }
  for (const absl::string_view address : absl::StrSplit(absl::StripPrefix(config.advertise, kShard), ',')) {
    names.insert(HostOf(address));
  }
  names.insert(HostOf(config.operations_listen));
  return names;
}

absl::StatusOr<std::string> CheckOpenPort(const std::set<std::string>& names, const HttpRequest& request,
                                          ScopeSet any_of) {
  const std::string host = HostOf(request.host);
  if (!names.contains(host) && !IsIpAddress(host)) {
    return absl::FailedPreconditionError(
        "this server does not accept the host name in your URL: use its address, "
        "localhost or the name in --advertise, or set --token-file");
  }
  const bool changes = !any_of.overlaps(Scope::kRead);
  if (changes && !request.from_here) {
    return absl::FailedPreconditionError("without --token-file, changes are accepted only from this machine");
  }
  return "";
}

constexpr std::chrono::milliseconds kHealthInterval(2000);

}  // namespace

absl::Status Readiness::State::Verdict() const {
  if (draining) return absl::UnavailableError("draining");
  if (starting) return absl::UnavailableError(kStarting);
  if (store.ok()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("store: ", absl::StatusCodeToString(store.code()), ": ", store.message()));
}

void Readiness::Change(const std::function<void(State&)>& change) {
  MutexLock lock(mutex_);
  const absl::Status before = state_.Verdict();
  change(state_);
  const absl::Status after = state_.Verdict();
  if (changed_ && before != after) changed_(after);
}

HttpResponse OperationsRoutes::Answer(const HttpRequest& request) const {
  const bool reads = request.method == "GET" || request.method == "HEAD";
  const bool changes_level = request.method == "POST" && request.path == kLogLevelPath;
  if (!reads && !changes_level) {
    HttpResponse response = Text(405, "only GET and HEAD are allowed here");
    response.headers.emplace_back("Allow", "GET, HEAD");
    return response;
  }
  if (request.path == "/healthz") return Text(200, "ok");
  const Readiness::State state = readiness.Get();
  const absl::Status ready = state.Verdict();
  if (request.path == "/readyz") return ready.ok() ? Text(200, "ok") : Text(503, std::string(ready.message()));
  if (request.path == "/metrics") {
    return {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics()};
  }
  // Before the store is open there is nothing to show, even if the server drains already.
  if (state.starting) return Text(503, Readiness::kStarting);
  return AnswerOperator(request);
}

HttpResponse OperationsRoutes::AnswerOperator(const HttpRequest& request) const {
  const bool post = request.method == "POST";
  // Any page in an operator's browser may send a POST to this port, and without tokens nothing else protects it.
  if (post && !request.origin.empty())
    return Text(403, "changes requested by web pages are rejected; use a client that is not a browser, such as curl");
  // A browser sends remembered credentials with requests of any page. So basic authentication is accepted for reading,
  // but not for changes.
  const std::string authorization = post ? request.authorization : BearerOf(request.authorization);
  const ScopeSet needed = post ? Scope::kAdmin : Scope::kRead | Scope::kAdmin;
  const auto token = check(request, authorization, needed);
  if (!token.ok()) return Rejection(token.status(), post);
  if (request.path == kLogLevelPath) return post ? ChangeLogLevel(request, *token) : LogLevelNow();
  if (request.path == "/api/v1/status") return {.content_type = kJson, .body = status_json()};
  if (request.path == "/statusz" || request.path == "/") {
    HttpResponse page = {.content_type = "text/html; charset=utf-8", .body = status_page()};
    page.headers.emplace_back("Content-Security-Policy",
                              "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'");
    return page;
  }
  return Text(404, "the paths are /healthz, /readyz, /metrics, /statusz, /api/v1/status and /api/v1/log-level");
}

OperatorCheck MakeOperatorCheck(const ServerConfig& config, const AccessControl& access) {
  if (!config.token_file.empty()) {
    return
        [&access](const HttpRequest&, absl::string_view authorization, ScopeSet any_of) -> absl::StatusOr<std::string> {
          absl::Status status = access.Check(authorization, any_of, /*run=*/"");
          if (!status.ok()) return status;
          return access.NameOf(authorization);
        };
  }
  const bool by_certificate = !config.tls.client_ca.empty();
  if (by_certificate && !config.operations_listen.empty() && !IsLocalAddress(config.operations_listen)) {
    return [](const HttpRequest&, absl::string_view, ScopeSet) {
      return absl::FailedPreconditionError("this port does not ask for certificates; set --token-file");
    };
  }
  return [names = NamesOf(config)](const HttpRequest& request, absl::string_view, ScopeSet any_of) {
    return CheckOpenPort(names, request, any_of);
  };
}

Operations::Operations(const ServerConfig& config, const Clock& clock, const ServedTls* tls, OperatorCheck check)
    : config_(config),
      clock_(clock),
      tls_(tls),
      started_(clock.TimeOfDay()),
      started_at_(clock.Now()),
      readiness_([this](const absl::Status& verdict) {
        if (health_ != nullptr) health_->SetReady(verdict.ok());
      }),
      routes_{readiness_, std::move(check), [this] { return MetricsText(); }, [this] { return Json(); },
              [this] { return Page(); }} {}

Operations::~Operations() { Stop(); }

absl::StatusOr<std::unique_ptr<Operations>> Operations::Start(const ServerConfig& config, const Clock& clock,
                                                              const ServedTls* tls, OperatorCheck check) {
  std::unique_ptr<Operations> operations(new Operations(config, clock, tls, std::move(check)));
  RR_RETURN_IF_ERROR(operations->Open());
  return operations;
}

absl::Status Operations::Open() {
  if (!config_.health_listen.empty()) {
    RR_ASSIGN_OR_RETURN(auto health, HealthPort::Start(config_.health_listen, config_.stall_timeout));
    health_ = std::move(health);
  }
  if (!config_.operations_listen.empty()) {
    RR_ASSIGN_OR_RETURN(auto http,
                        HttpPort::Start({.address = config_.operations_listen, .tls = tls_},
                                        [this](const HttpRequest& request) { return routes_.Answer(request); }));
    http_ = std::move(http);
  }
  return absl::OkStatus();
}

void Operations::Serve(OperatedServer server) {
  server_ = std::make_unique<OperatedServer>(std::move(server));
  LookAtStore();
  store_watch_ = std::make_unique<PeriodicThread>([this] {
    LookAtStore();
    return kHealthInterval;
  });
  readiness_.Change([](Readiness::State& state) { state.starting = false; });
}

void Operations::Drain() {
  readiness_.Change([](Readiness::State& state) { state.draining = true; });
}

void Operations::Stop() {
  http_.reset();
  store_watch_.reset();
  health_.reset();
}

std::string Operations::http_address() const { return http_ == nullptr ? "" : http_->address(); }
std::string Operations::health_address() const { return health_ == nullptr ? "" : health_->address(); }

void Operations::LookAtStore() {
  const absl::Status health = server_->store.Health(), before = readiness_.Get().store;
  readiness_.Change([&](Readiness::State& state) { state.store = health; });
  if (health == before) return;
  if (health.ok()) return LogEvent(LogLevel::kInfo, "store_healthy", "");
  LogEvent(LogLevel::kError, "store_unhealthy", health.message(), {{"code", absl::StatusCodeToString(health.code())}});
}

ServerStatus Operations::Look() const {
  const Readiness::State state = readiness_.Get();
  ServerStatus status{.version = ROUTING_REPLAY_VERSION,
                      .started = started_,
                      .uptime = clock_.Now() - started_at_,
                      .ready = state.Verdict(),
                      .store_health = state.store,
                      .draining = state.draining};
  if (tls_ != nullptr) status.certificate_expiry = tls_->texts()->expires;
  if (state.starting) return status;
  status.store = server_->store.name();
  status.listeners = server_->listeners;
  status.memory_budget_bytes = server_->budget.limit();
  status.memory_used_bytes = server_->budget.used();
  status.versions = server_->metrics.versions();
  if (status.store_health.ok()) status.totals = server_->store.GetTotals();
  return status;
}

std::string Operations::MetricsText() const {
  const bool serving = !readiness_.Get().starting;
  std::vector<prometheus::MetricFamily> families;
  if (serving) families = server_->metrics.registry().Collect();
  for (auto& family : FiguresOf(Look(), serving)) families.push_back(std::move(family));
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

std::optional<std::vector<RunState>> Operations::Runs(const ServerStatus& status) const {
  if (!status.store_health.ok()) return std::nullopt;
  absl::StatusOr<std::vector<RunState>> runs = server_->store.ListRuns();
  if (!runs.ok()) return std::nullopt;
  return *std::move(runs);
}

std::string Operations::Json() const {
  const ServerStatus status = Look();
  return StatusJson(status, Runs(status), server_->metrics.Counters(), server_->journal.Latest());
}

std::string Operations::Page() const {
  const ServerStatus status = Look();
  return StatusPage({.status = status,
                     .runs = Runs(status).value_or(std::vector<RunState>()),
                     .counters = server_->metrics.Counters(),
                     .troubles = server_->journal.Latest(),
                     .settings = ToYaml(config_),
                     .now = clock_.TimeOfDay()});
}

}  // namespace routing_replay::server
