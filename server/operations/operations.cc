#include "server/operations/operations.h"

#include <prometheus/text_serializer.h>

#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "server/operations/gauges.h"
#include "server/operations/health_port.h"
#include "server/operations/http/http_port.h"
#include "server/operations/listener_watch.h"
#include "server/operations/log/event_log.h"
#include "server/operations/page/rate_history.h"
#include "server/operations/page/status_page.h"
#include "server/operations/periodic_thread.h"
#include "server/operations/server_status.h"
#include "server/operations/status_json.h"
#include "server/operations/store_monitor.h"

namespace routing_replay::server {
namespace {

// What the charts are made of.
RateHistory::Totals RateTotals(const std::vector<std::pair<std::string, int64_t>>& counters) {
  RateHistory::Totals totals{};
  for (const auto& [name, value] : counters) {
    const auto count = static_cast<double>(value);
    if (name == "routing_replay_ingest_bytes_total") totals[RateHistory::kIngestBytes] += count;
    if (name == "routing_replay_egress_bytes_total") totals[RateHistory::kEgressBytes] += count;
    if (!absl::StartsWith(name, "routing_replay_rpcs_total{")) continue;
    totals[RateHistory::kCalls] += count;
    if (!absl::StrContains(name, "code=\"OK\"")) totals[RateHistory::kTroubledCalls] += count;
  }
  return totals;
}

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
      auto health = HealthPort::Start(
          {.address = config_.health_listen, .channelz = config_.channelz, .patience = config_.stall_timeout});
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
    monitor_ = std::make_unique<StoreMonitor>(server_->store, readiness_, clock_);
    source_ = std::make_unique<StatusSource>(StatusSource{.clock = clock_,
                                                          .budget = server_->budget,
                                                          .store = server_->store,
                                                          .readiness = readiness_,
                                                          .versions = server_->versions,
                                                          .monitor = *monitor_,
                                                          .listeners = server_->listeners,
                                                          .started = started_,
                                                          .started_at = started_at_,
                                                          .certificate_expiry = [this] { return Expiry(); },
                                                          .lost_samples = server_->lost_samples});
    // Of both the interval is a few seconds.
    sampler_ = std::make_unique<PeriodicThread>([this] {
      server_->journal.Flush();
      rates_.Add(clock_.Now(), RateTotals(server_->metrics.Values()));
      return RateHistory::kInterval;
    });
    const auto told = [this](const ListenerWatch::Found& found) { OnListenerLook(found); };
    listener_watch_ = std::make_unique<ListenerWatch>(ListenerWatch::Options{.addresses = server_->addresses}, told);
    readiness_.Started();  // The handlers of the HTTP port look at nothing of the above before.
  }

  void Drain() override { readiness_.Drain(); }

  void Stop() override {
    http_.reset();
    listener_watch_.reset();
    sampler_.reset();
    monitor_.reset();
    health_.reset();
  }

  std::string http_address() const override { return http_ == nullptr ? "" : http_->address(); }
  std::string health_address() const override { return health_ == nullptr ? "" : health_->address(); }

 private:
  void OnListenerLook(const ListenerWatch::Found& found) {
    const absl::Status before = readiness_.Get();
    readiness_.SetListenerHealth(found.answering, found.alive);
    if (health_ != nullptr) health_->SetLive(readiness_.Alive().ok());
    if (!found.answering.ok() && before != readiness_.Get()) {
      LogEvent(LogLevel::kError, "listener_silent", found.answering.message());
    }
    // While it drains, listeners end as they should.
    if (!found.reachable && !readiness_.draining()) server_->unreachable();
  }

  std::optional<std::chrono::system_clock::time_point> Expiry() const {
    if (tls_ == nullptr) return std::nullopt;
    return tls_->texts()->expires;
  }

  std::string MetricsText() const {
    const bool starting = readiness_.Get().message() == Readiness::kStarting;
    std::vector<prometheus::MetricFamily> families;
    if (!starting) families = server_->metrics.registry().Collect();
    for (auto& family : starting ? ProcessGaugesOf(Starting()) : GaugesOf(source_->Look(), config_.run_metrics)) {
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

  std::string Json() const { return StatusJson(source_->Look(), server_->metrics.Values(), server_->journal.Latest()); }

  std::string Page(bool refreshing) const {
    return StatusPage({.status = source_->Look(),
                       .counters = server_->metrics.Values(),
                       .troubles = server_->journal.Latest(),
                       .rates = rates_,
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
  std::unique_ptr<StoreMonitor> monitor_;
  std::unique_ptr<StatusSource> source_;
  RateHistory rates_;
  std::unique_ptr<PeriodicThread> sampler_;
  std::unique_ptr<ListenerWatch> listener_watch_;
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
