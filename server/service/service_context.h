// What every handler needs. Owned by the server; outlives the handlers.
#ifndef SERVER_SERVICE_SERVICE_CONTEXT_H_
#define SERVER_SERVICE_SERVICE_CONTEXT_H_

#include <atomic>

#include "proto/wire/clock.h"
#include "routing_replay/wire/error_detail.h"
#include "server/admission/byte_budget.h"
#include "server/config.h"
#include "server/operations/calls/call_record.h"
#include "server/operations/metrics.h"
#include "server/security/access_control.h"
#include "server/service/append_processor.h"
#include "server/store/store.h"

namespace routing_replay {

struct ServiceContext {
  ServiceContext(const ServerConfig& config, const Clock& clock, const AccessControl& access, ByteBudget& budget,
                 Store& store, Metrics& metrics)
      : config(config),
        clock(clock),
        access(access),
        budget(budget),
        store(store),
        started(clock.Now()),
        metrics(metrics),
        calls(metrics.registry(), clock),
        processor(store, budget, {.max_payload_bytes = config.max_payload_bytes, .verify_duplicates = config.verify}) {}

  const ServerConfig& config;
  const Clock& clock;
  const AccessControl& access;
  ByteBudget& budget;
  Store& store;
  const Clock::Time started;
  Metrics& metrics;
  CallBook calls;
  const AppendProcessor processor;
  std::string advertised;  // Set before the first call.
  std::atomic<bool> draining{false};
};

// What calls get that come while the server drains. Clients go on to another server.
inline absl::Status DrainingError() {
  return MakeError(absl::StatusCode::kUnavailable, "the server is shutting down", {.reason = Reason::kDraining});
}

}  // namespace routing_replay

#endif  // SERVER_SERVICE_SERVICE_CONTEXT_H_
