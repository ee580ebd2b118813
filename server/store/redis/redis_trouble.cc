#include "server/store/redis/redis_trouble.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

constexpr std::chrono::minutes kQuiet{1};

class OpaqueCluster final : public RedisCluster {
 public:
  OpaqueCluster(std::shared_ptr<RedisCluster> redis, RedisTrouble& trouble)
      : redis_(std::move(redis)), trouble_(trouble) {}

  std::vector<RedisResult> Execute(absl::Span<const RedisRequest> requests, Clock::Time deadline) override {
    std::vector<RedisResult> results = redis_->Execute(requests, deadline);
    for (size_t i = 0; i < results.size(); ++i) Hide(requests[i].command, results[i]);
    return results;
  }
  RedisResult ExecuteAt(const RedisAddress& server, const RedisCommand& command, Clock::Time deadline) override {
    RedisResult result = redis_->ExecuteAt(server, command, deadline);
    Hide(command, result);
    return result;
  }
  std::vector<RedisAddress> Masters() override { return redis_->Masters(); }
  bool clustered() const override { return redis_->clustered(); }
  RedisClusterCounters counters() const override { return redis_->counters(); }
  std::shared_ptr<RedisTopology> topology() override { return redis_->topology(); }
  void Abandon() override { redis_->Abandon(); }

 private:
  void Hide(const RedisCommand& command, RedisResult& result) {
    const absl::Status status = result.reply.status();
    if (status.ok() || absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
        absl::IsResourceExhausted(status)) {
      return;
    }
    if (absl::IsCancelled(status)) {
      result.reply = absl::UnavailableError(absl::StrCat("Redis: ", command.name(), ": this server stops"));
      return;
    }
    trouble_.Tell(command.name(), status);
    if (absl::StrContains(status.message(), "WRONGTYPE")) {
      result.reply = absl::DataLossError("Redis: a key of the store holds something that no server has written");
    } else {
      result.reply = absl::UnavailableError("Redis refuses this server; the server's log says why");
    }
  }

  const std::shared_ptr<RedisCluster> redis_;
  RedisTrouble& trouble_;
};

}  // namespace

bool RedisTrouble::MayTell(const std::string& what) {
  const Clock::Time now = clock_.Now();
  const auto [it, first] = told_.try_emplace(what, now);
  if (!first && now - it->second < kQuiet) return false;
  it->second = now;
  return true;
}

void RedisTrouble::Tell(const std::string& what, const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (!MayTell(what)) return;
  }
  spdlog::warn("redis store: {}: {}", what, std::string(status.message()));
}

void RedisTrouble::NameLoss(absl::string_view run, absl::string_view sample, int64_t rows_left,
                            int64_t rows_acknowledged) {
  spdlog::debug("redis store: loss: sample {} of run {}: {} of {} rows are left", std::string(sample), std::string(run),
                rows_left, rows_acknowledged);
}

void RedisTrouble::TellLosses() {
  const int64_t all = lost_samples();
  int64_t more = 0;
  {
    MutexLock lock(mutex_);
    if (all == told_losses_ || !MayTell("loss")) return;
    more = all - told_losses_;
    told_losses_ = all;
  }
  spdlog::warn(
      "redis store: loss: Redis came back with less than was acknowledged of {} samples ({} since the start of this "
      "server): they have a new revision, and rows that are gone are LOST; the level debug names them",
      more, all);
}

std::shared_ptr<RedisCluster> HideRedisErrors(std::shared_ptr<RedisCluster> redis, RedisTrouble& trouble) {
  return std::make_shared<OpaqueCluster>(std::move(redis), trouble);
}

}  // namespace routing_replay::server
