#include "server/store/redis/redis_time.h"

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

int64_t TimeOfDayMs(const Clock& clock) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(clock.TimeOfDay().time_since_epoch()).count();
}

// TIME: seconds and microseconds.
absl::StatusOr<int64_t> TimeOf(RedisCluster& cluster, const RedisAddress& server, Clock::Time deadline) {
  const RedisResult result = cluster.ExecuteAt(server, RedisCommand({"TIME"}), deadline);
  if (!result.reply.ok()) return result.reply.status();
  int64_t seconds = 0, microseconds = 0;
  if (result.reply->elements.size() != 2 || !absl::SimpleAtoi(result.reply->elements[0].text, &seconds) ||
      !absl::SimpleAtoi(result.reply->elements[1].text, &microseconds)) {
    return absl::UnavailableError(absl::StrCat(server.ToString(), ": gives no time"));
  }
  return seconds * 1000 + microseconds / 1000;
}

}  // namespace

RedisTime::RedisTime(const Clock& clock) : clock_(clock), offset_ms_(TimeOfDayMs(clock) - SinceStart().count()) {}

std::chrono::milliseconds RedisTime::SinceStart() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(clock_.Now().time_since_epoch());
}

int64_t RedisTime::NowMs() const { return SinceStart().count() + offset_ms_; }

absl::Status RedisTime::Follow(RedisCluster& cluster, Clock::Time deadline) {
  absl::Status apart;
  bool taken = false;
  for (const RedisAddress& server : cluster.Masters()) {
    const std::chrono::milliseconds asked = SinceStart();
    const absl::StatusOr<int64_t> time = TimeOf(cluster, server, deadline);
    if (!time.ok()) return time.status();
    const std::chrono::milliseconds answered = SinceStart();
    if (answered - asked > kMostApart / 4) {
      return absl::UnavailableError(absl::StrCat(server.ToString(), ": takes too long to tell the time"));
    }
    const int64_t ahead_ms = *time - TimeOfDayMs(clock_);
    if (!taken) offset_ms_ = *time - (asked + answered).count() / 2;
    taken = true;
    if (std::abs(ahead_ms) <= kMostApart.count()) continue;
    apart = absl::FailedPreconditionError(
        absl::StrCat("the clock of Redis ", server.ToString(), " is ", ahead_ms / 1000,
                     " s ahead of this machine's; no idle samples are removed before they agree"));
  }
  return apart;
}

}  // namespace routing_replay::server
