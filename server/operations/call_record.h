// One RPC, from its arrival to its end: counted, timed, and logged if it failed or was rejected. Every handler makes
// one CallRecord for each of its calls. Each kind of failure is logged at most once in 10 s (at the level debug: every
// time), and the latest kinds are kept for the status page.
#ifndef SERVER_OPERATIONS_CALL_RECORD_H_
#define SERVER_OPERATIONS_CALL_RECORD_H_

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

// A kind of trouble: the calls of one method that ended in the same way. Contains fixed words, no ids of clients.
struct CallTrouble {
  std::string method;
  std::string code;
  std::string reason;  // From the ErrorDetail; empty: none.
  std::string field;
  bool failed = false;  // The server failed; otherwise the call was rejected.
  int64_t count = 0;
  std::chrono::system_clock::time_point last;
};

// Thread-safe.
class CallJournal {
 public:
  static constexpr Clock::Duration kInterval = std::chrono::seconds(10);
  static constexpr size_t kKinds = 20;

  explicit CallJournal(const Clock& clock) : clock_(clock), filter_(clock, kInterval) {}

  // A call, or one append of a stream, ended with `status`, which is not OK. `identity` returns the fields that
  // identify the caller; it is called only if a line is written. The status's message may name samples, and is logged
  // only at the level debug.
  void Note(absl::string_view method, const absl::Status& status, const std::function<LogFields()>& identity);
  // The kinds that occurred last, the most recent one first; at most kKinds.
  std::vector<CallTrouble> Latest() const;

 private:
  void Remember(CallTrouble trouble);

  const Clock& clock_;
  RepeatFilter filter_;
  mutable Mutex mutex_;
  std::deque<CallTrouble> latest_ ABSL_GUARDED_BY(mutex_);
};

// State shared by all records of a server. Must outlive them.
struct CallBook {
  const Clock& clock;
  const AccessControl& access;
  Metrics& metrics;
  CallJournal journal{clock};
};

// The caller of a call, as its transport reports it.
struct Caller {
  std::string peer;                // As gRPC names it: "ipv4:127.0.0.1:1234".
  const char* transport = "grpc";  // "grpc"; on the direct path "direct" (TCP), "unix" or "shm" (shared memory).
  // The authorization header. Empty if there are several: a client must not choose which one is checked.
  std::string authorization;
  std::string certificate_names;              // Names in the client certificate, for logs only; they grant no access.
  Clock::Time deadline = Clock::Time::max();  // By Clock::Real().
};

// Not thread-safe.
class CallRecord {
 public:
  // `method`: the name of a method of the service. It and `caller` must outlive the record.
  CallRecord(CallBook& book, absl::string_view method, const Caller& caller);
  CallRecord(const CallRecord&) = delete;
  CallRecord& operator=(const CallRecord&) = delete;
  ~CallRecord();  // A call without End counts as CANCELLED.

  // The call ends with `status`. Only the first End counts.
  void End(const absl::Status& status);
  // One message of the call was rejected, and the call continues.
  void Reject(const absl::Status& status);
  // Logs who created or destroyed something of a run. `action`: [a-z_]+. `status`: how it ended.
  void Audit(const char* action, absl::string_view run, const absl::Status& status, const LogFields& what) const;

 private:
  // The call's log fields: peer, client (names of its certificate), token (its name).
  LogFields Identity() const;

  CallBook& book_;
  const absl::string_view method_;
  const Caller& caller_;
  const Clock::Time began_;
  bool ended_ = false;
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_CALL_RECORD_H_
