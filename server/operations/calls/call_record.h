// One RPC, from its arrival to its end: counted, timed, and told in the log where it did not end well. Every handler
// has one for each of its calls.
#ifndef SERVER_OPERATIONS_CALLS_CALL_RECORD_H_
#define SERVER_OPERATIONS_CALLS_CALL_RECORD_H_

#include <grpcpp/server_context.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/wire/clock.h"
#include "server/operations/calls/call_journal.h"
#include "server/operations/calls/rpc_metrics.h"

namespace routing_replay {

// What all records of a server use. Outlives them.
struct CallBook {
  CallBook(prometheus::Registry& registry, const Clock& server_clock)
      : clock(server_clock), metrics(registry), journal(server_clock) {}
  const Clock& clock;
  RpcMetrics metrics;
  CallJournal journal;
};

// Not thread-safe.
class CallRecord {
 public:
  // `method` is one of RpcMethods(), `call` one that has arrived; both outlive the record.
  CallRecord(CallBook& book, absl::string_view method, const grpc::ServerContext& call);
  CallRecord(const CallRecord&) = delete;
  CallRecord& operator=(const CallRecord&) = delete;
  ~CallRecord();  // A call that nobody ended was CANCELLED.

  // The call ends with `status`. Of several the first counts.
  void End(const absl::Status& status);
  // One message of the call was refused, and the call goes on.
  void Refuse(const absl::Status& status);

 private:
  // request_id, traceparent (where the client sent one), peer, client (names of its certificate).
  LogFields Identity() const;

  CallBook& book_;
  const absl::string_view method_;
  const grpc::ServerContext& call_;
  const Clock::Time began_;
  bool ended_ = false;
  mutable std::string request_id_;  // Made for the first line.
};

}  // namespace routing_replay

#endif  // SERVER_OPERATIONS_CALLS_CALL_RECORD_H_
