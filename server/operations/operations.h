// What an operator sees of a server: the HTTP port and the health port, from before the store is opened until after the
// last call has ended.
//
//   auto operations = Operations::Start(config, clock, check);   // /readyz: starting
//   …                                                            // The store is opened, the listeners are.
//   (*operations)->Serve({…});                                   // /readyz: ok, as long as the store is well
//   (*operations)->Drain();                                      // /readyz: draining
//   (*operations)->Stop();                                       // The ports are closed.
//
// What the operations port answers, path by path.
//
//   GET  /healthz           200
//   GET  /readyz            200, or 503 with the reason
//   GET  /metrics           the format of Prometheus, version 0.0.4
//   GET  /api/v1/status     the status as JSON
//   GET  /statusz           the same for people
//   GET  /api/v1/log-level  {"level":"info"}
//   POST /api/v1/log-level  {"level":"debug"}
//
// The first three are for everybody who reaches the port. The others name runs: where the server has tokens they need
// one with the scope read or admin on every run, and POST one with admin. A browser may give the token as the password
// of basic authentication, for what is read. Where it has none, see MakeOperatorCheck.
#ifndef SERVER_OPERATIONS_OPERATIONS_H_
#define SERVER_OPERATIONS_OPERATIONS_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"
#include "server/admission/byte_budget.h"
#include "server/config/config.h"
#include "server/connections/grpc_ports.h"
#include "server/operations/call_record.h"
#include "server/operations/http_port.h"
#include "server/operations/metrics.h"
#include "server/operations/periodic_thread.h"
#include "server/operations/status.h"
#include "server/security/access_control.h"
#include "server/security/served_tls.h"
#include "server/store/store.h"

namespace routing_replay::server {

// Starting, then serving as long as the store is well, then draining. Thread-safe.
class Readiness {
 public:
  static constexpr char kStarting[] = "starting";
  struct State {
    bool starting = true;
    bool draining = false;
    absl::Status store;
    // OK, or UNAVAILABLE with the reason as its message.
    absl::Status Verdict() const;
  };

  // `changed` is called with every new verdict, one call at a time, by whoever caused it; it must not call this.
  explicit Readiness(std::function<void(const absl::Status&)> changed = nullptr) : changed_(std::move(changed)) {}

  void Change(const std::function<void(State&)>& change);
  State Get() const {
    MutexLock lock(mutex_);
    return state_;
  }

 private:
  const std::function<void(const absl::Status&)> changed_;
  mutable Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_);
};

// The name of the token if whoever asks may, empty where none is asked for: the bearer of `authorization` (which stands
// for that of the request) has one of the scopes on every run. UNAUTHENTICATED where it is nobody; FAILED_PRECONDITION
// saying how to ask, where tokens have nothing to do with it.
using OperatorCheck = std::function<absl::StatusOr<std::string>(const HttpRequest& request,
                                                                absl::string_view authorization, ScopeSet any_of)>;

struct OperationsRoutes {
  const Readiness& readiness;
  OperatorCheck check;
  // Of the process alone before the server has started. Thread-safe, as the others.
  std::function<std::string()> metrics;
  // Each is called once the server has started, and not before.
  std::function<std::string()> status_json;
  std::function<std::string()> status_page;

  // Thread-safe.
  HttpResponse Answer(const HttpRequest& request) const;

 private:
  HttpResponse AnswerOperator(const HttpRequest& request) const;
};

// By tokens, where the server has some. Without:
// - who calls the server by another name than those of its settings is rejected: so comes a page in an operator's
//   browser that has the name of its own server lead here. "localhost" and addresses are never such a name.
// - changes come from this machine alone.
// - where clients are known by their certificates, which the operations port does not ask for, nobody may on a port
//   that is reached from elsewhere.
// `access` outlives it.
OperatorCheck MakeOperatorCheck(const ServerConfig& config, const AccessControl& access);

// What is told about. Outlives Operations::Stop.
struct OperatedServer {
  ByteBudget& budget;
  Store& store;
  Metrics& metrics;
  const CallJournal& journal;
  std::vector<std::string> listeners;  // As people write them.
};

class Operations {
 public:
  // Opens the ports that are configured, which may be none. UNAVAILABLE naming an address that is taken. `clock`
  // and `tls`, which is null where the listeners have none, outlive it.
  static absl::StatusOr<std::unique_ptr<Operations>> Start(const ServerConfig& config, const Clock& clock,
                                                           const ServedTls* tls, OperatorCheck check);
  ~Operations();  // Stops.

  // Once.
  void Serve(OperatedServer server);
  // From here on it is not ready.
  void Drain();
  // Waits for answers that are being made; nothing of the server is looked at afterwards.
  void Stop();

  // With the ports that were chosen; empty: none was asked for.
  std::string http_address() const;
  std::string health_address() const;

 private:
  Operations(const ServerConfig& config, const Clock& clock, const ServedTls* tls, OperatorCheck check);
  absl::Status Open();
  void LookAtStore();
  void CountSamples();
  // As of now. A store that is not well is not asked: what is known of its contents is the last census, if any. Before
  // the store is open there are the process and its certificate.
  ServerStatus Look() const;
  std::string MetricsText() const;
  std::string Json() const;
  std::string Page() const;

  const ServerConfig config_;
  const Clock& clock_;
  const ServedTls* const tls_;
  const std::chrono::system_clock::time_point started_;
  const Clock::Time started_at_;
  std::unique_ptr<HealthPort> health_;
  Readiness readiness_;
  const OperationsRoutes routes_;
  std::unique_ptr<OperatedServer> server_;  // The handlers of the HTTP port look at it once it is started, not before.
  std::atomic<bool> stop_{false};
  Clock::Time next_census_;  // Of the thread that looks at the store.
  mutable Mutex mutex_;
  std::shared_ptr<const Census> census_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<PeriodicThread> store_watch_;
  std::unique_ptr<HttpPort> http_;
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_OPERATIONS_H_
