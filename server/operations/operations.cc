#include "server/operations/operations.h"
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <sstream>
#include <utility>

#include "proto/wire/mutex.h"
#include "server/connections/grpc_ports.h"
#include "server/operations/event_log.h"
#include "server/operations/http_port.h"
#include "server/operations/status.h"
#include "server/operations/status_formats.h"
#include "server/operations/status_page.h"
#include "server/operations/upkeep.h"

namespace routing_replay::server {
namespace {

constexpr std::chrono::milliseconds kHealthInterval(2000);
// A census takes no more than one part in 50 of the time, and comes no more often than this.
constexpr std::chrono::milliseconds kCensusInterval(10'000);
constexpr int64_t kCensusSamples = 20000;

class OpenOperations final : public Operations {
 public:
  OpenOperations(const ServerConfig& config, const Clock& clock, const ServedTls* tls, OperatorCheck check)
      : config_(config),
        clock_(clock),
        tls_(tls),
        started_(clock.TimeOfDay()),
        started_at_(clock.Now()),
        readiness_([this](const absl::Status& verdict) {
          if (health_ != nullptr) health_->SetReady(verdict.ok());
        }),
        routes_{readiness_, std::move(check), [this] { return MetricsText(); }, [this] { return Json(); },
                [this](bool refreshing) { return Page(refreshing); }} {}
  ~OpenOperations() override { Stop(); }

  absl::Status Open() {
    if (!config_.health_listen.empty()) {
      auto health = HealthPort::Start({.address = config_.health_listen, .patience = config_.stall_timeout});
      if (!health.ok()) return health.status();
      health_ = *std::move(health);
    }
    if (!config_.operations_listen.empty()) {
      auto http = HttpPort::Start({.address = config_.operations_listen, .tls = tls_},
                                  [this](const HttpRequest& request) { return routes_.Answer(request); });
      if (!http.ok()) return http.status();
      http_ = *std::move(http);
    }
    return absl::OkStatus();
  }

  void Serve(OperatedServer server) override {
    server_ = std::make_unique<OperatedServer>(std::move(server));
    LookAtStore();
    store_watch_ = std::make_unique<PeriodicThread>([this] {
      LookAtStore();
      if (readiness_.store_health().ok() && clock_.Now() >= next_census_) CountSamples();
      return kHealthInterval;
    });
    readiness_.Started();  // The handlers of the HTTP port look at nothing of the above before.
  }

  void Drain() override { readiness_.Drain(); }

  void Stop() override {
    stop_ = true;
    http_.reset();
    store_watch_.reset();
    health_.reset();
  }

  std::string http_address() const override { return http_ == nullptr ? "" : http_->address(); }
  std::string health_address() const override { return health_ == nullptr ? "" : health_->address(); }

 private:
  void LookAtStore() {
    const absl::Status health = server_->store.Health();
    const absl::Status before = readiness_.store_health();
    readiness_.SetStoreHealth(health);
    if (health == before) return;
    if (health.ok()) {
      LogEvent(LogLevel::kInfo, "store_healthy", "");
    } else {
      LogEvent(LogLevel::kError, "store_unhealthy", health.message(),
               {{"code", absl::StatusCodeToString(health.code())}});
    }
  }

  void CountSamples() {
    const Clock::Time began = clock_.Now();
    auto census = TakeCensus(server_->store, kCensusSamples, [this] { return stop_.load(); });
    const Clock::Time ended = clock_.Now();
    next_census_ = ended + std::max<Clock::Duration>(kCensusInterval, 50 * (ended - began));
    if (!census.ok()) return;  // Health tells of it, and the last one stays.
    auto shared = std::make_shared<const Census>(*std::move(census));
    MutexLock lock(mutex_);
    census_ = std::move(shared);
  }

  // As of now. A store that is not well is not asked: what is known of its contents is the last census, if any.
  ServerStatus Look() const {
    const Metrics::Versions versions = server_->metrics.versions();
    ServerStatus status{.version = ROUTING_REPLAY_VERSION,
                        .store = server_->store.name(),
                        .listeners = server_->listeners,
                        .started = started_,
                        .uptime = clock_.Now() - started_at_,
                        .ready = readiness_.Get(),
                        .store_health = readiness_.store_health(),
                        .draining = readiness_.draining(),
                        .memory_budget_bytes = server_->budget.limit(),
                        .memory_used_bytes = server_->budget.used(),
                        .resident_bytes = LookAtProcess().resident_bytes,
                        .newest_put = versions.newest_put,
                        .newest_get = versions.newest_get,
                        .version_lag = versions.lag,
                        .certificate_expiry = Expiry()};
    {
      MutexLock lock(mutex_);
      status.census = census_;
    }
    if (status.store_health.ok()) {
      status.totals = server_->store.GetTotals();
    } else if (status.census != nullptr) {
      for (const Census::Run& run : status.census->runs) {
        ++status.totals.runs;
        status.totals.samples += run.samples;
        status.totals.stored_bytes += run.stored_bytes;
      }
    }
    if (server_->lost_samples != nullptr) status.lost_samples = server_->lost_samples->load();
    return status;
  }

  std::optional<std::chrono::system_clock::time_point> Expiry() const {
    if (tls_ == nullptr) return std::nullopt;
    return tls_->texts()->expires;
  }

  std::string MetricsText() const {
    const bool starting = readiness_.Get().message() == Readiness::kStarting;
    std::vector<prometheus::MetricFamily> families;
    if (!starting) families = server_->metrics.registry().Collect();
    for (auto& family : starting ? ProcessGaugesOf(Starting()) : GaugesOf(Look())) {
      families.push_back(std::move(family));
    }
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, families);
    return out.str();
  }

  // What there is to tell before the store is open.
  ServerStatus Starting() const {
    return {.version = ROUTING_REPLAY_VERSION,
            .started = started_,
            .ready = readiness_.Get(),
            .certificate_expiry = Expiry()};
  }

  std::string Json() const { return StatusJson(Look(), server_->metrics.Values(), server_->journal.Latest()); }

  std::string Page(bool refreshing) const {
    return StatusPage({.status = Look(),
                       .counters = server_->metrics.Values(),
                       .troubles = server_->journal.Latest(),
                       .settings = ToYaml(config_),
                       .now = clock_.TimeOfDay(),
                       .refreshing = refreshing});
  }

  const ServerConfig config_;
  const Clock& clock_;
  const ServedTls* const tls_;
  const std::chrono::system_clock::time_point started_;
  const Clock::Time started_at_;
  std::unique_ptr<HealthPort> health_;
  Readiness readiness_;
  const OperationsRoutes routes_;
  std::unique_ptr<OperatedServer> server_;
  std::atomic<bool> stop_{false};
  Clock::Time next_census_;  // Of the thread.
  mutable Mutex mutex_;
  std::shared_ptr<const Census> census_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<PeriodicThread> store_watch_;
  std::unique_ptr<HttpPort> http_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Operations>> Operations::Start(const ServerConfig& config, const Clock& clock,
                                                              const ServedTls* tls, OperatorCheck check) {
  auto operations = std::make_unique<OpenOperations>(config, clock, tls, std::move(check));
  if (absl::Status status = operations->Open(); !status.ok()) return status;
  return operations;
}

}  // namespace routing_replay::server
