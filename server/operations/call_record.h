// One RPC, from its arrival to its end: counted, timed, and told in the log where it did not end well. Every handler
// has one for each of its calls. What ended badly is told at most once per kind and 10 s; the latest kinds are kept for
// people who look at the server.
#ifndef SERVER_OPERATIONS_CALL_RECORD_H_
#define SERVER_OPERATIONS_CALL_RECORD_H_

#include <grpcpp/server_context.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"
#include "server/log/event_log.h"
#include "server/operations/metrics.h"
#include "server/security/access_control.h"

namespace routing_replay::server {

// Whose call it is, as its client says in metadata: what makes the lines of several programs' logs one story.
inline constexpr char kRequestIdKey[] = "x-request-id";
inline constexpr char kTraceParentKey[] = "traceparent";

// `given` where it can be one ([A-Za-z0-9._:/-]{1,128}), otherwise a new one of 16 hexadecimal digits.
std::string RequestId(absl::string_view given);

// `given` where it is what W3C Trace Context, version 00, calls valid, otherwise nothing.
std::string TraceParent(absl::string_view given);

// A kind of trouble: the calls of one method that ended in the same way. Words of this program, no ids of clients.
struct CallTrouble {
  std::string method;
  std::string code;
  std::string reason;  // Of the ErrorDetail; empty: none.
  std::string field;
  bool failed = false;  // By the server's fault; otherwise the call was rejected.
  int64_t count = 0;
  std::chrono::system_clock::time_point last;
};

// Thread-safe.
class CallJournal {
 public:
  static constexpr Clock::Duration kInterval = std::chrono::seconds(10);
  static constexpr size_t kKinds = 20;

  explicit CallJournal(const Clock& clock) : clock_(clock), filter_(clock, kInterval) {}

  // A call, or one append of a stream, ended with `status`, which is not OK. `identity`: the fields that say whose it
  // was, asked for where a line is written. The status's message may name samples, and is told at the level debug
  // alone.
  void Note(absl::string_view method, const absl::Status& status, const std::function<LogFields()>& identity);
  // The latest kinds, the last one first; at most kKinds.
  std::vector<CallTrouble> Latest() const;

 private:
  void Remember(CallTrouble trouble);

  const Clock& clock_;
  RepeatFilter filter_;
  mutable Mutex mutex_;
  std::deque<CallTrouble> latest_ ABSL_GUARDED_BY(mutex_);
};

// What all records of a server use. Outlives them.
struct CallBook {
  const Clock& clock;
  const AccessControl& access;
  Metrics& metrics;
  CallJournal journal{clock};
};

// The header of that name; empty where there are two: a client must not choose which one is checked.
absl::string_view AuthorizationOf(const grpc::ServerContextBase& call);

// Not thread-safe.
class CallRecord {
 public:
  // `method` is one of the service, `call` one that has arrived; both outlive the record.
  CallRecord(CallBook& book, absl::string_view method, const grpc::ServerContext& call);
  CallRecord(const CallRecord&) = delete;
  CallRecord& operator=(const CallRecord&) = delete;
  ~CallRecord();  // A call that nobody ended was CANCELLED.

  // The call ends with `status`. Of several the first counts.
  void End(const absl::Status& status);
  // One message of the call was rejected, and the call goes on.
  void Reject(const absl::Status& status);
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

#endif  // SERVER_OPERATIONS_CALL_RECORD_H_
