#include "server/store/redis/client/redis_pool.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace routing_replay::server {

RedisLease::~RedisLease() {
  if (connection_ != nullptr) pool_->GiveBack(std::move(connection_));
}

absl::StatusOr<RedisLease> RedisPool::Take(const RedisAddress& server, Clock::Time deadline) {
  while (true) {
    auto idle = TakeIdle(server, deadline);
    if (!idle.ok()) return idle.status();
    if (*idle != nullptr) {
      const bool good = (*idle)->CheckIdle();
      RedisLease lease(this, *std::move(idle));
      if (good) return lease;
      continue;
    }
    auto opened = open_(server, deadline);
    if (opened.ok()) return RedisLease(this, *std::move(opened));
    Closed(server);
    return opened.status();
  }
}

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisPool::TakeIdle(const RedisAddress& server, Clock::Time deadline) {
  std::vector<Idle> expired;  // Closed after the lock is given back.
  const MutexLock lock(mutex_);
  expired = TakeExpired();
  while (true) {
    Server& here = servers_[server];
    if (!here.idle.empty()) {
      std::unique_ptr<RedisConnection> connection = std::move(here.idle.back().connection);
      here.idle.pop_back();
      return connection;
    }
    if (here.open < options_.max_connections) {
      ++here.open;
      return nullptr;
    }
    if (!freed_.WaitUntil(mutex_, deadline) && options_.clock->Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(server.ToString(), ": all ", options_.max_connections, " connections are in use"));
    }
  }
}

std::vector<RedisPool::Idle> RedisPool::TakeExpired() {
  std::vector<Idle> expired;
  const Clock::Time now = options_.clock->Now();
  for (auto server = servers_.begin(); server != servers_.end();) {
    std::vector<Idle>& idle = server->second.idle;
    const auto kept = std::find_if(idle.begin(), idle.end(),
                                   [&](const Idle& each) { return now - each.since < options_.idle_timeout; });
    server->second.open -= static_cast<int>(kept - idle.begin());
    std::move(idle.begin(), kept, std::back_inserter(expired));
    idle.erase(idle.begin(), kept);
    server = server->second.open == 0 ? servers_.erase(server) : std::next(server);
  }
  return expired;
}

void RedisPool::GiveBack(std::unique_ptr<RedisConnection> connection) {
  const RedisAddress server = connection->address();
  if (!connection->alive() || connection->due() > 0) {
    connection.reset();
    return Closed(server);
  }
  const MutexLock lock(mutex_);
  servers_[server].idle.push_back({std::move(connection), options_.clock->Now()});
  freed_.NotifyAll();
}

void RedisPool::Closed(const RedisAddress& server) {
  const MutexLock lock(mutex_);
  --servers_[server].open;
  freed_.NotifyAll();
}

}  // namespace routing_replay::server
