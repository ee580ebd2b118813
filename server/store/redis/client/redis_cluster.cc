#include "server/store/redis/client/redis_cluster.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/backoff.h"
#include "server/store/redis/client/redis_error.h"
#include "server/store/redis/client/redis_execution.h"
#include "server/store/redis/client/redis_topology.h"

namespace routing_replay::server {
namespace {

constexpr Backoff::Options kConnectPauses = {.initial = std::chrono::milliseconds(20),
                                             .maximum = std::chrono::milliseconds(500)};

class Cluster final : public RedisCluster {
 public:
  explicit Cluster(std::shared_ptr<RedisTopology> topology) : topology_(std::move(topology)) {}

  std::vector<RedisResult> Execute(absl::Span<const RedisRequest> requests, Clock::Time deadline) override {
    return RedisExecution(*topology_, requests, deadline).Run();
  }
  std::vector<RedisAddress> Masters() override { return topology_->view()->map.Masters(); }
  bool clustered() const override { return topology_->view()->clustered; }
  std::shared_ptr<RedisTopology> topology() override { return topology_; }
  void Abandon() override { topology_->Abandon(); }

  RedisResult ExecuteAt(const RedisAddress& server, const RedisCommand& command, Clock::Time deadline) override {
    RedisResult result = AskOnce(server, command, deadline);
    // Most likely a connection that the server closed just when it was used again.
    if (absl::IsUnavailable(result.reply.status())) result = AskOnce(server, command, deadline);
    return result;
  }

  RedisClusterCounters counters() const override {
    const RedisTopology::Counters& counters = topology_->counters();
    return {.moved = counters.moved,
            .asked = counters.asked,
            .retried = counters.retried,
            .lost_connections = counters.lost_connections,
            .map_refreshes = counters.map_refreshes,
            .connects = counters.connects};
  }

 private:
  RedisResult AskOnce(const RedisAddress& server, const RedisCommand& command, Clock::Time deadline) {
    const auto lease = topology_->Take(server, deadline);
    if (!lease.ok()) return {.reply = lease.status()};
    RedisExchange exchange{.connection = &**lease, .commands = {&command}};
    RunRedisExchanges(absl::MakeSpan(&exchange, 1), topology_->exchange_limits(), topology_->WaitUntil(deadline));
    if (absl::IsCancelled(exchange.status)) return {.reply = absl::UnavailableError(exchange.status.message())};
    if (exchange.replies.empty()) return {.reply = exchange.status};
    RedisReply reply = std::move(exchange.replies.front());
    if (reply.is_error()) return {.reply = StatusOfRedisError(command.name(), reply.text)};
    return {.reply = std::move(reply)};
  }

  const std::shared_ptr<RedisTopology> topology_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RedisCluster>> RedisCluster::Connect(const RedisEndpoint& endpoint,
                                                                    const RedisClusterOptions& options,
                                                                    Clock::Time deadline) {
  std::shared_ptr<const RedisTls> tls;
  if (endpoint.tls) {
    auto created = RedisTls::Create(endpoint);
    if (!created.ok()) return created.status();
    tls = *std::move(created);
  }
  auto topology = std::make_shared<RedisTopology>(endpoint, options, std::move(tls));
  Backoff backoff(kConnectPauses);
  absl::Status status = topology->Refresh(0, deadline);
  while (!status.ok() && !IsFinalRedisError(status)) {
    const Clock::Duration pause = backoff.Next();
    if (options.clock->Now() + pause >= deadline) break;
    std::this_thread::sleep_for(pause);
    status = topology->Refresh(0, deadline);
  }
  if (IsFinalRedisError(status) || absl::IsDeadlineExceeded(status)) return status;
  if (!status.ok()) return absl::UnavailableError(status.message());
  return std::make_unique<Cluster>(std::move(topology));
}

RedisResult RedisCluster::ExecuteOne(const RedisRequest& request, Clock::Time deadline) {
  return std::move(Execute(absl::MakeConstSpan(&request, 1), deadline).front());
}

}  // namespace routing_replay::server
