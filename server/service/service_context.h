// State that every handler needs.
#ifndef SERVER_SERVICE_SERVICE_CONTEXT_H_
#define SERVER_SERVICE_SERVICE_CONTEXT_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/clock.h"
#include "proto/wire/message/append_message.h"
#include "proto/wire/mutex.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "server/admission/byte_budget.h"
#include "server/admission/call_limits.h"
#include "server/admission/worker_pool.h"
#include "server/config/config.h"
#include "server/operations/call_record.h"
#include "server/operations/metrics.h"
#include "server/security/access_control.h"
#include "server/security/tickets.h"
#include "server/service/append_processor.h"
#include "server/store/store.h"

namespace routing_replay::server {

// Memory for requests of reads, in addition to the budget: a quarter of it, at most 16 of the longest messages, and at
// least enough for the longest request and for the one with the most samples.
inline int64_t ReadRequestBytes(const ServerConfig& config) {
  constexpr int64_t kLeast = int64_t{64} << 20, kLongestMessages = 3, kMostMessages = 16;
  const int64_t share = std::max(config.memory_budget / 4, kLongestMessages * config.max_message_bytes);
  return std::max(kLeast, std::min(kMostMessages * config.max_message_bytes, share));
}

// Memory for long requests of calls without payload while they are parsed, and for long answers until they are read: at
// least enough for one of the longest.
inline int64_t ControlBytes(const ServerConfig& config) {
  return std::max<int64_t>(int64_t{64} << 20, config.memory_budget / 16);
}

// Limit for the memory that is shared with clients on this machine. A connection for which none is left uses its
// socket.
inline int64_t SharedMemoryBytes(const ServerConfig& config) {
  return std::max<int64_t>(int64_t{16} << 20, config.memory_budget / 64);
}

// The address of the direct path that is reported to clients. If `tickets` is null there is no direct path.
struct DirectOffer {
  int port = 0;                 // TCP port; 0: none.
  std::string unix_socket;      // Name of an abstract Unix socket.
  bool encrypted = false;       // The TCP port uses TLS.
  std::vector<int> grpc_ports;  // Ports of the gRPC listeners.
  Tickets* tickets = nullptr;
};

struct ServiceContext {
  ServiceContext(const ServerConfig& config, const Clock& clock, const AccessControl& access, ByteBudget& budget,
                 Store& store, Metrics& metrics)
      : config(config),
        clock(clock),
        access(access),
        budget(budget),
        store(store),
        started(clock.Now()),
        quota(
            config.run_budget, clock,
            [&store](absl::string_view run) -> absl::StatusOr<int64_t> {
              RR_ASSIGN_OR_RETURN(const RunState state, store.StatRun(run));
              return state.stored_bytes;
            },
            [&metrics] { metrics.CountQuotaRejection("run_bytes"); }),
        connections(config.max_streams),
        control_memory(ControlBytes(config)),
        shared_memory(SharedMemoryBytes(config)),
        read_requests(ReadRequestBytes(config)),
        waiting_reads(ReadRequestBytes(config) / 2,
                      [&metrics](int64_t bytes) { metrics.waiting_read_bytes.Set(static_cast<double>(bytes)); }),
        metrics(metrics),
        calls{clock, access, metrics},
        processor(store, budget, config.max_payload_bytes) {}

  const ServerConfig& config;
  const Clock& clock;
  const AccessControl& access;
  ByteBudget& budget;
  Store& store;
  const Clock::Time started;
  RunQuota quota;
  ConnectionCalls connections;
  ByteBudget control_memory;
  ByteBudget shared_memory;
  // Memory of reads in progress besides the rows: requests, the state of the current sample, messages. Separate from
  // the budget, so that a server whose budget is used up can still be read.
  ByteBudget read_requests;
  WaitingRoom waiting_reads;  // The part of read_requests that waiting reads hold, possibly for long.
  Metrics& metrics;
  CallBook calls;
  const AppendProcessor processor;
  Mutex making_run;  // Held while the runs are counted and then one is created.
  // Set before the first call.
  std::string advertised;
  DirectOffer direct;
  // Threads for store requests if the store may block (on a disk or on Redis); null if it never does. See
  // ServedCall::StartWork.
  WorkerPool* readers = nullptr;
  WorkerPool* writers = nullptr;
  std::atomic<bool> draining{false};
};

// The error for calls that arrive while the server drains. Clients then try another server.
inline absl::Status DrainingError() {
  return MakeError(absl::StatusCode::kUnavailable, "the server is shutting down", {.reason = Reason::kDraining});
}

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_SERVICE_CONTEXT_H_
