// What an error reply means for the one who sent the command. Pure; thread-safe.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_ERROR_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/store/redis/client/redis_endpoint.h"

namespace routing_replay::server {

struct RedisError {
  enum class Kind {
    kMoved,      // The slot lives at `address` now.
    kAsk,        // This once, ask at `address` after ASKING.
    kNoScript,   // EVALSHA of a script that the server does not have.
    kRetry,      // TRYAGAIN, CLUSTERDOWN, LOADING, MASTERDOWN, READONLY, NOREPLICAS, BUSY: not executed; may pass.
    kForCaller,  // Anything else: not executed, and the same again would give the same.
  };
  Kind kind = Kind::kForCaller;
  int slot = 0;          // kMoved, kAsk.
  RedisAddress address;  // kMoved, kAsk; an empty host is that of the server which answered.
};

// Malformed redirections are kForCaller.
RedisError ParseRedisError(absl::string_view text);

// The status for an error reply to `command` (a name), "COMMAND: text":
//   PERMISSION_DENIED    NOAUTH, WRONGPASS, NOPERM
//   RESOURCE_EXHAUSTED   OOM (kOverBudget, with a retry hint)
//   UNAVAILABLE          everything of kind kMoved, kAsk, kRetry; MISCONF
//   FAILED_PRECONDITION  the rest, errors that a script raised itself among them
// At most 256 bytes of the text are repeated.
absl::Status StatusOfRedisError(absl::string_view command, absl::string_view text);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_ERROR_H_
