// Calls that may wait: on the caller's thread, or on one of the library's with an end in a queue.
#ifndef CLIENT_C_API_CALLS_H_
#define CLIENT_C_API_CALLS_H_

#include <cstdint>
#include <functional>

#include "client/c_api/errors.h"
#include "routing_replay/c_api.h"

namespace routing_replay::c_api {

// What rr_call.timeout_ms is for.
enum class Timeout {
  kOfCall,  // The whole call, retries included.
  kOfWork,  // `work` looks at it itself, or not at all.
};

// Does `work` here where `call` has no queue (or is null), and gives how it ended; else on a thread of the library, and
// its end goes into the queue. All waits of `work` see the call's cancellation and timeout (client/cancellation.h).
// INVALID_ARGUMENT for a tag that is under way already.
//
//   return Guard([&]() -> CallEnd {
//     … convert the arguments …
//     return Perform(call, [=] -> CallEnd { … });
//   });
//
// `work` must own what it uses, but for payloads and outputs. Outputs are for its end, when nothing can fail any more.
CallEnd Perform(const rr_call* call, std::function<CallEnd()> work, Timeout timeout = Timeout::kOfCall);

}  // namespace routing_replay::c_api

#endif  // CLIENT_C_API_CALLS_H_
