// The Client of client.h over several servers, each sample with one of them (members.h).
#ifndef CLIENT_SHARD_SHARDED_CLIENT_H_
#define CLIENT_SHARD_SHARDED_CLIENT_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/appender/append_plan.h"
#include "client/call/cancellation.h"
#include "client/caller.h"
#include "client/shard/members.h"
#include "proto/wire/clock.h"
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

// The servers, by place. Thread-safe. The callers of members remember which of them are gone (Caller).
struct MemberSet {
  ShardMembers names;
  std::vector<std::shared_ptr<const Caller>> callers;

  size_t size() const { return callers.size(); }
};

// NOT_FOUND (kNoRun).
bool IsNoRun(const absl::Status& status);
// `status` with the server named before its message. OK stays OK.
absl::Status WithServer(const absl::Status& status, const std::string& endpoint);

// One appender per member that is appended to, each with an equal share of the queue: a member that does not answer
// fills its own and no other's. A sequence number is the member's place modulo their number (OpenedRun). `runs`:
// by place; `blocks`: of all of them. A PlanAppender.
std::unique_ptr<Appender> MakeShardedAppender(std::shared_ptr<const MemberSet> members,
                                              std::vector<std::shared_ptr<Run>> runs, const BlockOptions& blocks,
                                              AppenderOptions options);

// As Run::Read in client.h, with request.run filled in. The members send at the same time, each to a thread that hands
// its samples to the sink when their turn comes. A sample whose server is away has the status UNAVAILABLE.
absl::Status ReadSharded(const MemberSet& members, const Geometry& geometry, const ReadRequest& request, ReadSink& sink,
                         Clock::Time deadline);

}  // namespace routing_replay::client

#endif  // CLIENT_SHARD_SHARDED_CLIENT_H_
