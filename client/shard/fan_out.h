// The same call of several servers at once.
#ifndef CLIENT_SHARD_FAN_OUT_H_
#define CLIENT_SHARD_FAN_OUT_H_

#include <cstddef>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "client/cancellation.h"

namespace routing_replay::client {

// call(0), … call(count - 1), each on a thread of its own, for the call of this one. What they return, in this order.
template <typename Call>
auto FanOut(size_t count, const Call& call) {
  using Result = decltype(call(size_t{}));
  std::vector<std::optional<Result>> slots(count);
  std::vector<std::thread> threads;
  for (size_t i = 1; i < count; ++i) {
    threads.emplace_back([&, i, scope = CallOfThread()] {
      const CallScope of_call(scope);
      slots[i] = call(i);
    });
  }
  if (count > 0) slots[0] = call(0);
  for (std::thread& thread : threads) thread.join();
  std::vector<Result> results;
  for (std::optional<Result>& slot : slots) results.push_back(*std::move(slot));
  return results;
}

}  // namespace routing_replay::client

#endif  // CLIENT_SHARD_FAN_OUT_H_
