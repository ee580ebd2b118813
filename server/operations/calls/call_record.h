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
#include "server/security/access_control.h"

namespace routing_replay::server {

// What all records of a server use. Outlives them.
struct CallBook {
  CallBook(prometheus::Registry& registry, const Clock& server_clock, const AccessControl& server_access)
      : clock(server_clock), access(server_access), metrics(registry), journal(server_clock) {}
  const Clock& clock;
  const AccessControl& access;
  RpcMetrics metrics;
  CallJournal journal;
};

// The header of that name. Two are none: nobody is to choose which one is looked at.
absl::string_view AuthorizationOf(const grpc::ServerContextBase& call);

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
  // Tells who made or destroyed something of a run. `action`: [a-z_]+. `status`: how it ended.
  void Audit(const char* action, absl::string_view run, const absl::Status& status, const LogFields& what) const;

 private:
  // request_id, traceparent (where the client sent one), peer, client (names of its certificate), token (its name).
  LogFields Identity() const;

  CallBook& book_;
  const absl::string_view method_;
  const grpc::ServerContext& call_;
  const Clock::Time began_;
  bool ended_ = false;
  mutable std::string request_id_;  // Made for the first line.
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_CALLS_CALL_RECORD_H_
