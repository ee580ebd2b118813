// What is told of calls that were refused or failed: in the log, at most one line per kind of trouble and interval, and
// the latest kinds for people who look at the server.
#ifndef SERVER_OPERATIONS_CALLS_CALL_JOURNAL_H_
#define SERVER_OPERATIONS_CALLS_CALL_JOURNAL_H_

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
#include "server/operations/log/event_log.h"
#include "server/operations/log/repeat_filter.h"

namespace routing_replay::server {

// A kind of trouble: the calls of one method that ended in the same way. Words of this program, no ids of clients.
struct CallTrouble {
  std::string method;
  std::string code;
  std::string reason;  // Of the ErrorDetail; empty: none.
  std::string field;
  bool failed = false;  // By the server's fault; otherwise the call was refused.
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
  // Tells of what was held back and is not followed by anything. Call it every few seconds.
  void Flush();
  // The latest kinds, the last one first; at most kKinds.
  std::vector<CallTrouble> Latest() const;

 private:
  void Remember(CallTrouble trouble);

  const Clock& clock_;
  RepeatFilter filter_;
  mutable Mutex mutex_;
  std::deque<CallTrouble> latest_ ABSL_GUARDED_BY(mutex_);
};

// Whether a call that ends so is the server's fault, and not its caller's.
bool IsServersFault(absl::StatusCode code);

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_CALLS_CALL_JOURNAL_H_
