// One call of RedisCluster::Execute: rounds of asking until each request has its result.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_EXECUTION_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_EXECUTION_H_

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "proto/wire/backoff.h"
#include "server/store/redis/client/redis_cluster.h"
#include "server/store/redis/client/redis_error.h"
#include "server/store/redis/client/redis_topology.h"

namespace routing_replay::server {

// Used once, by one thread.
class RedisExecution {
 public:
  // All of it must outlive the execution.
  RedisExecution(RedisTopology& topology, absl::Span<const RedisRequest> requests, Clock::Time deadline);

  std::vector<RedisResult> Run() &&;

 private:
  struct Redirection {
    RedisAddress server;
    bool asking;  // ASKING goes first.
  };
  struct State {
    int slot;
    // Where a server said that the next try should go: it knows better than the map, which another server may have told
    // that has not heard of the change yet.
    std::optional<Redirection> redirection;
    std::optional<RedisCommand> with_source;  // In place of the request's command.
    // Of a sequence that met a slot on its way to another server: each command goes alone, to where that one belongs.
    // All of them together at one of both servers would leave keys at both, and the slot could not move on.
    bool in_steps = false;
    size_t steps_done = 0;
    absl::Status last_error;
    bool repeated = false;
    bool done = false;
  };
  // Where a request is in a pipeline.
  struct Place {
    size_t begin;  // Of its commands, all of them together …
    size_t end;
    size_t step;  // … of which each so many-th is one of its own, and the others are ASKING.
  };
  // The requests that go to one server, and their places.
  struct Batch {
    std::vector<size_t> requests;
    std::vector<Place> places;
  };

  // Asks for everything that is not done once.
  void Round();
  std::map<RedisAddress, Batch> Route();
  RedisExchange Prepare(const RedisLease& lease, Batch& batch);
  void Evaluate(RedisExchange& exchange, const Batch& batch);
  // `reply`: to `command`, which is the last one of the request, or one that failed.
  void Judge(size_t request, const RedisCommand& command, RedisReply reply, const RedisAddress& server);
  void Lost(size_t request, const absl::Status& status, bool written);
  void RetryLater(size_t request, absl::Status why);
  void Finish(size_t request, RedisResult result);
  void Pause();
  void GiveUp();

  RedisTopology& topology_;
  const absl::Span<const RedisRequest> requests_;
  const Clock::Time deadline_;
  const Clock& clock_;
  std::vector<State> states_;
  std::vector<RedisResult> results_;
  size_t left_;
  std::optional<Backoff> backoff_;  // Made when it is needed: most calls have no pause.
  std::shared_ptr<const RedisTopology::View> view_;
  int rounds_without_pause_ = 0;
  bool pause_ = false;    // Something must have time to pass before the next round.
  bool refresh_ = false;  // The map is not to be trusted.
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_EXECUTION_H_
