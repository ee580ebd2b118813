// The Client of client.h over several servers, each sample with one of them (members.h).
#ifndef CLIENT_SHARD_SHARDED_CLIENT_H_
#define CLIENT_SHARD_SHARDED_CLIENT_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/call/cancellation.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// Of an endpoint "shard:…". INVALID_ARGUMENT as ShardMembers::Parse.
absl::StatusOr<std::unique_ptr<Client>> ConnectSharded(const ClientOptions& options);

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

#endif  // CLIENT_SHARD_SHARDED_CLIENT_H_
