#include "server/store/redis/client/redis_topology.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/store/redis/client/redis_error.h"

namespace routing_replay::server {
namespace {

constexpr int kHurry = 4;

}  // namespace

bool IsFinalRedisError(const absl::Status& status) {
  return absl::IsPermissionDenied(status) || absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status);
}

RedisTopology::RedisTopology(const RedisEndpoint& endpoint, const RedisClusterOptions& options,
                             std::shared_ptr<const RedisTls> tls)
    : endpoint_(endpoint),
      options_(options),
      tls_(std::move(tls)),
      pool_({options.max_connections, options.idle_timeout, options.clock},
            [this](const RedisAddress& server, Clock::Time deadline) { return Open(server, WaitUntil(deadline)); }) {}

std::shared_ptr<const RedisTopology::View> RedisTopology::view() const {
  const MutexLock lock(mutex_);
  return view_;
}

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisTopology::Open(const RedisAddress& server, RedisWait wait) {
  const Clock::Time callers_deadline = wait.deadline;
  wait.deadline = std::min(wait.deadline, DeadlineAfter(wait.clock->Now(), options_.connect_timeout));
  ++counters_.connects;
  auto connection = RedisConnection::Open(server, endpoint_, tls_.get(), options_.max_reply_bytes, wait);
  // Only what the caller waits for is the caller's deadline.
  if (absl::IsDeadlineExceeded(connection.status()) && wait.deadline < callers_deadline) {
    return absl::UnavailableError(
        absl::StrCat(server.ToString(), ": no connection within ", options_.connect_timeout.count(), " ms"));
  }
  return connection;
}

void RedisTopology::Moved(int slot, const RedisAddress& master) {
  const MutexLock lock(mutex_);
  if (view_->map.MasterOf(slot) == master) return;
  auto corrected = std::make_shared<View>(*view_);
  corrected->map.Assign(slot, master);
  view_ = std::move(corrected);
}

absl::Status RedisTopology::Refresh(int64_t seen, Clock::Time deadline) {
  {
    const MutexLock lock(mutex_);
    while (refreshing_) {
      if (!refreshed_.WaitUntil(mutex_, deadline)) return absl::DeadlineExceededError("waiting for the map of slots");
    }
    if (view_->generation > seen) return absl::OkStatus();
    refreshing_ = true;
  }
  auto view = AskAnyone(deadline);
  const MutexLock lock(mutex_);
  refreshing_ = false;
  refreshed_.NotifyAll();
  nobody_answered_ = !view.ok();
  if (!view.ok()) return view.status();
  view->generation = view_->generation + 1;
  view_ = std::make_shared<const View>(*std::move(view));
  return absl::OkStatus();
}

// Starts with another one each time, so that a server cut off from the others is not believed for ever.
std::vector<RedisAddress> RedisTopology::Candidates() {
  const MutexLock lock(mutex_);
  std::vector<RedisAddress> candidates = view_->map.nodes();
  for (const RedisAddress& seed : endpoint_.seeds) {
    if (std::find(candidates.begin(), candidates.end(), seed) == candidates.end()) candidates.push_back(seed);
  }
  const size_t first = first_candidate_++ % candidates.size();
  std::rotate(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(first), candidates.end());
  return candidates;
}

// One that hangs must not use up the time in which the others would answer, unless all of them are that slow.
Clock::Duration RedisTopology::TimeForOne(size_t candidates) {
  const MutexLock lock(mutex_);
  return candidates > 1 && !nobody_answered_ ? options_.connect_timeout / kHurry : options_.connect_timeout;
}

absl::StatusOr<RedisTopology::View> RedisTopology::AskAnyone(Clock::Time deadline) {
  ++counters_.map_refreshes;
  absl::Status status;
  const std::vector<RedisAddress> candidates = Candidates();
  const Clock::Duration time = TimeForOne(candidates.size());
  for (const RedisAddress& candidate : candidates) {
    auto view = Ask(candidate, std::min(deadline, options_.clock->Now() + time));
    if (view.ok()) return view;
    // What an operator has to mend says more than who happens to be down.
    if (status.ok() || !IsFinalRedisError(status)) status = view.status();
  }
  return status;
}

absl::StatusOr<RedisTopology::View> RedisTopology::Ask(const RedisAddress& server, Clock::Time deadline) {
  const RedisWait wait = WaitUntil(deadline);
  const auto lease = Take(server, wait.deadline);
  if (IsFinalRedisError(lease.status())) return lease.status();
  const RedisCommand command({"CLUSTER", "SLOTS"});
  absl::Status status = lease.status();
  if (status.ok()) {
    const auto replies = (*lease)->Exchange(absl::MakeConstSpan(&command, 1), wait);
    if (replies.ok()) return Read(server, replies->front());
    status = replies.status();
  }
  return absl::UnavailableError(absl::StrCat(server.ToString(), ": CLUSTER SLOTS: ", status.message()));
}

absl::StatusOr<RedisTopology::View> RedisTopology::Read(const RedisAddress& server, const RedisReply& reply) {
  if (reply.is_error() && absl::StrContains(reply.text, "cluster support disabled")) {
    if (endpoint_.seeds.size() == 1) return View{.map = SlotMap::Single(server)};
    return absl::FailedPreconditionError(
        absl::StrCat(server.ToString(), " is no cluster: name one server only, or the servers of one cluster"));
  }
  if (reply.is_error()) return StatusOfRedisError("CLUSTER SLOTS", reply.text);
  auto map = SlotMap::Parse(reply, server.host);
  if (!map.ok()) return map.status();
  if (map->unserved_slots() == kRedisSlots) {
    return absl::UnavailableError(absl::StrCat(server.ToString(), ": the cluster has no slots yet"));
  }
  return View{.map = *std::move(map), .clustered = true};
}

}  // namespace routing_replay::server
