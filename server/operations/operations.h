// The ports for operators: the HTTP port and the health port. They are open from before the store is opened until after
// the last call has ended.
//
//   auto operations = Operations::Start(config, clock, tls, check);  // /readyz: starting
//   …                                                                // Open the store and the listeners.
//   (*operations)->Serve({…});                                       // /readyz: ok, while the store is healthy
//   (*operations)->Drain();                                          // /readyz: draining
//   (*operations)->Stop();                                           // The ports are closed.
//
// The paths of the operations port:
//
//   GET  /healthz           200
//   GET  /readyz            200, or 503 with the reason
//   GET  /metrics           the format of Prometheus, version 0.0.4
//   GET  /api/v1/status     the status as JSON
//   GET  /statusz           the same for people
//   GET  /api/v1/log-level  {"level":"info"}
//   POST /api/v1/log-level  {"level":"debug"}
//
// Everybody who reaches the port may use the first three. The other paths show run names. If the server has tokens, GET
// requires a token with the scope read or admin on every run, and POST one with the scope admin. For reading, a browser
// may give the token as the password of basic authentication. Without tokens, see MakeOperatorCheck.
#ifndef SERVER_OPERATIONS_OPERATIONS_H_
#define SERVER_OPERATIONS_OPERATIONS_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
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

// Whether the server is ready for clients. It starts, then it is ready as long as the store is healthy, then it drains.
// Thread-safe.
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

  // `changed` is called with every new verdict, by the thread that caused it, one call at a time. It must not call
  // functions of this object.
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

// Checks that the bearer of `authorization` (used in place of the request's own header) has one of the scopes on every
// run. Returns the name of its token, or "" if no token is required. UNAUTHENTICATED if the token is not valid,
// PERMISSION_DENIED or NOT_FOUND if it lacks the scope; FAILED_PRECONDITION, saying what to do, for any other reason.
using OperatorCheck = std::function<absl::StatusOr<std::string>(const HttpRequest& request,
                                                                absl::string_view authorization, ScopeSet any_of)>;

struct OperationsRoutes {
  const Readiness& readiness;
  OperatorCheck check;
  // Returns the text for /metrics. Before the server has started, it has only the metrics of the process. Like the
  // other functions here, it is called by several threads at once.
  std::function<std::string()> metrics;
  // Called only after the server has started.
  std::function<std::string()> status_json;
  std::function<std::string()> status_page;

  // Thread-safe.
  HttpResponse Answer(const HttpRequest& request) const;

 private:
  HttpResponse AnswerOperator(const HttpRequest& request) const;
};

// Uses tokens, if the server has some. Without tokens:
// - a client that names the server differently from its settings is rejected: with DNS rebinding, a page in an
//   operator's browser could reach this port under its own host name. "localhost" and IP addresses are always accepted.
// - changes must come from this machine.
// - if clients are identified by certificates, which the operations port does not ask for, nobody may use a port that
//   other machines can reach.
// `access` must outlive it.
OperatorCheck MakeOperatorCheck(const ServerConfig& config, const AccessControl& access);

// The parts of the server that are shown. Must outlive Operations::Stop.
struct OperatedServer {
  ByteBudget& budget;
  Store& store;
  Metrics& metrics;
  const CallJournal& journal;
  std::vector<std::string> listeners;  // As text for people.
};

class Operations {
 public:
  // Opens the configured ports, perhaps none. UNAVAILABLE naming an address that is in use. `clock` and `tls` (null if
  // the listeners use none) must outlive it.
  static absl::StatusOr<std::unique_ptr<Operations>> Start(const ServerConfig& config, const Clock& clock,
                                                           const ServedTls* tls, OperatorCheck check);
  ~Operations();  // Calls Stop.

  // From here on the ports show the state of `server`. Call it once.
  void Serve(OperatedServer server);
  // From here on /readyz and the health port report that the server is not ready.
  void Drain();
  // Closes the ports, after waiting for running handlers. Does not use the server afterwards.
  void Stop();

  // The addresses of the ports, with the port numbers that were chosen; empty if a port is not configured.
  std::string http_address() const;
  std::string health_address() const;

 private:
  Operations(const ServerConfig& config, const Clock& clock, const ServedTls* tls, OperatorCheck check);
  absl::Status Open();
  void LookAtStore();
  // Returns the current status, without totals while the store is unhealthy. Before Serve, it has only the version,
  // start, readiness and certificate.
  ServerStatus Look() const;
  // The runs of the store; nothing while it is unhealthy or does not answer.
  std::optional<std::vector<RunState>> Runs(const ServerStatus& status) const;
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
  std::unique_ptr<OperatedServer> server_;  // The handlers of the HTTP port use it only after it is set.
  std::unique_ptr<PeriodicThread> store_watch_;
  std::unique_ptr<HttpPort> http_;
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_OPERATIONS_H_
