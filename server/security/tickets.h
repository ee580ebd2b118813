// Tickets: a client gets one over gRPC (OpenDirect) and presents it when it makes a call on the direct path.
#ifndef SERVER_SECURITY_TICKETS_H_
#define SERVER_SECURITY_TICKETS_H_

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"

namespace routing_replay::server {

// A ticket stands for a bearer token. It allows exactly what that token allows at the time of use. Thread-safe.
class Tickets {
 public:
  static constexpr Clock::Duration kLife = std::chrono::minutes(10);

  struct Ticket {
    std::string secret;  // 16 random bytes.
    Clock::Time expires;
  };

  // `clock` must outlive this.
  explicit Tickets(const Clock& clock) : clock_(clock) {}

  // Returns a ticket for `token` ("" if the server has no tokens) that stays valid for at least half of kLife. At most
  // two valid tickets exist per token.
  Ticket Issue(absl::string_view token);
  // The token that the ticket stands for; nothing if the ticket is unknown or expired.
  std::optional<std::string> TokenOf(absl::string_view secret);

 private:
  struct Holder {
    std::string token;
    Clock::Time expires;
  };

  const Clock& clock_;
  Mutex mutex_;
  std::map<std::string, Holder, std::less<>> holders_ ABSL_GUARDED_BY(mutex_);  // By secret.
};

}  // namespace routing_replay::server

#endif  // SERVER_SECURITY_TICKETS_H_
