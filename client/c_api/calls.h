// Calls that may wait: on the caller's thread, or on one of the library's with an end in a queue.
#ifndef CLIENT_C_API_CALLS_H_
#define CLIENT_C_API_CALLS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "client/c_api/errors.h"
#include "client/call/call_order.h"
#include "client/call/cancellation.h"
#include "proto/wire/mutex.h"
#include "routing_replay/c_api.h"

namespace routing_replay::c_api {

// What rr_call.timeout_ms is for.
enum class Timeout {
  kOfCall,  // The whole call, retries included.
  kOfWork,  // `work` looks at it itself, or not at all.
};

// Does `work` here where `call` has no queue (or is null), and gives how it ended; else on a thread of the library, and
// its end goes into the queue. All waits of `work` see the call's cancellation and timeout
// (client/call/cancellation.h). INVALID_ARGUMENT for a tag that is under way already.
//
// A fork of the process breaks `work` off where it waits, and it is made again from its beginning, in the parent only:
// client::KeepCall, or Once around it, for what must not be done twice.
//
//   return Guard([&]() -> CallEnd {
//     … convert the arguments …
//     return Perform(call, [=] -> CallEnd { … });
//   });
//
// `work` must own what it uses, but for payloads and outputs. Outputs are for its end, when nothing can fail any more.
//
// `at_once`, where there is one, is asked first where there is a queue, on the caller's thread: how the call has ended
// without waiting, or nothing.
CallEnd Perform(const rr_call* call, std::function<CallEnd()> work, Timeout timeout = Timeout::kOfCall,
                const std::function<std::optional<CallEnd>()>& at_once = nullptr);

// `work` that is not broken off once it has begun.
template <typename Work>
auto Once(Work work) {
  return [work = std::move(work)]() -> CallEnd {
    if (absl::Status kept = client::KeepCall(); !kept.ok()) return kept;
    return work();
  };
}

// The same for calls of one object that are done in the order in which they were made. `work` is given their place, and
// waits for its turn. `calling` is held where one with a queue takes its place and then a thread: the first place in
// the order always has one.
CallEnd PerformInOrder(const rr_call* call, client::CallOrder& order, Mutex& calling,
                       std::function<CallEnd(std::shared_ptr<const client::CallOrder::Place>)> work);

}  // namespace routing_replay::c_api

#endif  // CLIENT_C_API_CALLS_H_
