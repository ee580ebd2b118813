// What lets a client of the service onto the direct path.
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

// A ticket stands for a token, and opens nothing that the token does not open when it is used. Thread-safe.
class Tickets {
 public:
  static constexpr Clock::Duration kLife = std::chrono::minutes(10);

  struct Ticket {
    std::string secret;  // 16 bytes by chance.
    Clock::Time expires;
  };

  // `clock` must outlive this.
  explicit Tickets(const Clock& clock) : clock_(clock) {}

  // A ticket for `token` ("" where there are none), which is good for half its life at least. So there are two at most
  // for each token that is good.
  Ticket Issue(absl::string_view token);
  // The token of a ticket that has not expired.
  std::optional<std::string> TokenOf(absl::string_view secret);

 private:
  struct Holder {
    std::string token;
    Clock::Time expires;
  };
  void ForgetExpired(Clock::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  Mutex mutex_;
  std::map<std::string, Holder, std::less<>> holders_ ABSL_GUARDED_BY(mutex_);  // By secret.
  std::map<std::string, Ticket, std::less<>> latest_ ABSL_GUARDED_BY(mutex_);   // By token.
};

}  // namespace routing_replay::server

#endif  // SERVER_SECURITY_TICKETS_H_
