// Connections to many servers, kept for their next use.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_POOL_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_POOL_H_

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/wire/mutex.h"
#include "server/store/redis/client/redis_connection.h"

namespace routing_replay::server {

class RedisPool;

// A connection that one caller has to itself; the destructor gives it back, or closes it if it is dead or answers are
// due. Move-only.
class RedisLease {
 public:
  RedisLease(RedisPool* pool, std::unique_ptr<RedisConnection> connection)
      : pool_(pool), connection_(std::move(connection)) {}
  RedisLease(RedisLease&&) = default;
  RedisLease& operator=(RedisLease&&) = delete;
  ~RedisLease();

  RedisConnection& operator*() const { return *connection_; }
  RedisConnection* operator->() const { return connection_.get(); }

 private:
  RedisPool* pool_;
  std::unique_ptr<RedisConnection> connection_;
};

// Thread-safe. Must outlive its leases.
class RedisPool {
 public:
  using Opener = std::function<absl::StatusOr<std::unique_ptr<RedisConnection>>(const RedisAddress&, Clock::Time)>;
  struct Options {
    int max_connections;  // To one server, those in use and the idle ones together.
    Clock::Duration idle_timeout;
    const Clock* clock;
  };

  RedisPool(const Options& options, Opener open) : options_(options), open_(std::move(open)) {}

  // An idle connection that is still good, or a new one; waits while the server has max_connections. Who needs several
  // servers at once takes them in order of address, or two such callers could wait for each other.
  // DEADLINE_EXCEEDED, or what `open` says.
  absl::StatusOr<RedisLease> Take(const RedisAddress& server, Clock::Time deadline);

 private:
  friend class RedisLease;
  struct Idle {
    std::unique_ptr<RedisConnection> connection;
    Clock::Time since;
  };
  struct Server {
    int open = 0;
    std::vector<Idle> idle;  // The last one was used last.
  };
  // An idle connection, or null for the right to open one.
  absl::StatusOr<std::unique_ptr<RedisConnection>> TakeIdle(const RedisAddress& server, Clock::Time deadline);
  std::vector<Idle> TakeExpired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveBack(std::unique_ptr<RedisConnection> connection);
  void Closed(const RedisAddress& server);

  const Options options_;
  const Opener open_;
  Mutex mutex_;
  CondVar freed_;
  std::map<RedisAddress, Server> servers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_POOL_H_
