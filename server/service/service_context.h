// What every handler needs.
#ifndef SERVER_SERVICE_SERVICE_CONTEXT_H_
#define SERVER_SERVICE_SERVICE_CONTEXT_H_

#include <grpcpp/server_context.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/clock.h"
#include "proto/wire/message/append_message.h"
#include "proto/wire/mutex.h"
#include "routing_replay/wire/error_detail.h"
#include "server/admission/byte_budget.h"
#include "server/admission/call_limits.h"
#include "server/admission/worker_pool.h"
#include "server/config/config.h"
#include "server/operations/call_record.h"
#include "server/operations/metrics.h"
#include "server/security/access_control.h"
#include "server/security/served_tls.h"
#include "server/service/append_processor.h"
#include "server/store/store.h"

namespace routing_replay::server {

// What requests of reads may take: a quarter of the budget beside it, and so much at least that the longest request and
// the one with the most samples can be read.
inline int64_t ReadRequestBytes(const ServerConfig& config) {
  constexpr int64_t kLeast = int64_t{64} << 20, kLongestMessages = 3, kMostMessages = 16;
  const int64_t share = std::max(config.memory_budget / 4, kLongestMessages * config.max_message_bytes);
  return std::max(kLeast, std::min(kMostMessages * config.max_message_bytes, share));
}

// What long requests of calls without payload may take as they are read, and long answers until they are taken: one of
// the longest at least.
inline int64_t ControlBytes(const ServerConfig& config) {
  return std::max<int64_t>(int64_t{64} << 20, config.memory_budget / 16);
}

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
            {.bytes = config.run_budget, .streams = config.run_streams}, clock,
            [&store](absl::string_view run) { return StoredBytes(store, run); },
            [&metrics](const char* quota) { metrics.CountQuotaRejection(quota); }),
        connections(config.max_streams),
        control_memory(ControlBytes(config)),
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
  // What reads under way take beside the rows: requests, what is known of the sample at hand, messages. Apart from the
  // budget: a full server must still be read.
  ByteBudget read_requests;
  WaitingRoom waiting_reads;  // What those of them take that wait, which may be long.
  Metrics& metrics;
  CallBook calls;
  const AppendProcessor processor;
  Mutex making_run;  // Held from the count of the runs to the end of making one more.
  // Set before the first call.
  std::string advertised;
  // Ask a store that may wait; null of one that never does: see StoreWork.
  WorkerPool* readers = nullptr;
  WorkerPool* writers = nullptr;
  const ClientCertificates* client_certificates = nullptr;  // Null: no client is asked for one.
  std::atomic<bool> draining{false};

 private:
  static absl::StatusOr<int64_t> StoredBytes(Store& store, absl::string_view run) {
    const absl::StatusOr<RunState> state = store.StatRun(run);
    if (!state.ok()) return state.status();
    return state->stored_bytes;
  }
};

// What calls get that come while the server drains. Clients go on to another server.
inline absl::Status DrainingError() {
  return MakeError(absl::StatusCode::kUnavailable, "the server is shutting down", {.reason = Reason::kDraining});
}

// By Clock::Real(); in a hundred years where none was stated.
inline Clock::Time CallerDeadline(const grpc::ServerContext& call) {
  const auto now = std::chrono::system_clock::now();
  // In ms first: "for ever" less any time fits them.
  const auto ms = [](auto time) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch());
  };
  return DeadlineAfter(Clock::Real().Now(), ms(call.deadline()) - ms(now));
}

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_SERVICE_CONTEXT_H_
