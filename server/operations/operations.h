// What an operator sees of a server: the HTTP port and the health port, from before the store is opened until after the
// last call has ended.
//
//   auto operations = Operations::Start(config, clock, check);   // /readyz: starting
//   …                                                            // The store is opened, the listeners are.
//   (*operations)->Serve({…});                                   // /readyz: ok, as long as the store is well
//   (*operations)->Drain();                                      // /readyz: draining
//   (*operations)->Stop();                                       // The ports are closed.
#ifndef SERVER_OPERATIONS_OPERATIONS_H_
#define SERVER_OPERATIONS_OPERATIONS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/wire/clock.h"
#include "server/admission/byte_budget.h"
#include "server/config.h"
#include "server/operations/call_record.h"
#include "server/operations/metrics.h"
#include "server/operations/operations_routes.h"
#include "server/security/served_tls.h"
#include "server/store/store.h"

namespace routing_replay::server {

// What is told about. Outlives Operations::Stop.
struct OperatedServer {
  ByteBudget& budget;
  Store& store;
  Metrics& metrics;
  const CallJournal& journal;
  std::vector<std::string> listeners;                                  // As people write them.
  std::shared_ptr<const std::atomic<int64_t>> lost_samples = nullptr;  // OpenedStore::lost_samples.
};

class Operations {
 public:
  // Opens the ports that are configured, which may be none. UNAVAILABLE naming an address that cannot be had. `clock`
  // and `tls`, which is null where the listeners have none, outlive it.
  static absl::StatusOr<std::unique_ptr<Operations>> Start(const ServerConfig& config, const Clock& clock,
                                                           const ServedTls* tls, OperatorCheck check);
  virtual ~Operations() = default;  // Stops.

  // Once.
  virtual void Serve(OperatedServer server) = 0;
  // From here on it is not ready.
  virtual void Drain() = 0;
  // Waits for answers that are being made; nothing of the server is looked at afterwards.
  virtual void Stop() = 0;

  // With the ports that were chosen; empty: none was asked for.
  virtual std::string http_address() const = 0;
  virtual std::string health_address() const = 0;
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_OPERATIONS_H_
