// What the parts of one Redis store share.
#ifndef SERVER_STORE_REDIS_REDIS_CONTEXT_H_
#define SERVER_STORE_REDIS_REDIS_CONTEXT_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"
#include "server/store/call_deadline.h"
#include "server/store/redis/client/redis_cluster.h"
#include "server/store/redis/known_samples.h"
#include "server/store/redis/redis_keys.h"
#include "server/store/redis/redis_time.h"
#include "server/store/redis/redis_trouble.h"
#include "server/store/sample/content_ids.h"

namespace routing_replay::server {

// For how long the keys of a run live after the last use of their sample. Samples end when a server sweeps them; the
// times to live in Redis are longer, and see to what no server takes away.
struct RedisLives {
  explicit RedisLives(Clock::Duration run_ttl) : ttl(std::chrono::duration_cast<std::chrono::milliseconds>(run_ttl)) {}

  std::chrono::milliseconds slack() const {
    return std::max<std::chrono::milliseconds>(ttl / 4, std::chrono::hours(1));
  }
  // Uses that follow each other faster are not written down.
  std::chrono::milliseconds grain() const {
    return std::min<std::chrono::milliseconds>(ttl / 10, std::chrono::minutes(1));
  }
  std::chrono::milliseconds manifest() const { return ttl + slack(); }
  // Chunks are given time seldom: each of them is a command.
  std::chrono::milliseconds chunk() const { return 2 * manifest(); }
  // What is used without being changed is noted in the index only when it is looked after.
  std::chrono::milliseconds index() const { return 4 * manifest(); }

  const std::chrono::milliseconds ttl;
};

struct RedisContext {
  RedisContext(std::shared_ptr<RedisCluster> redis, const std::string& prefix, const Clock& store_clock,
               size_t known_sample_limit, int64_t known_byte_limit,
               std::shared_ptr<std::atomic<int64_t>> lost_samples = nullptr)
      : trouble(Clock::Real(), std::move(lost_samples)),
        cluster(HideRedisErrors(std::move(redis), trouble)),
        keys(prefix),
        clock(store_clock),
        time(store_clock),
        known(known_sample_limit, known_byte_limit) {}

  // Of a step of a call: no later than the caller's.
  Clock::Time Deadline() const { return std::min(TidyDeadline(), CallDeadline::OfThisThread()); }
  // Of what is left to be done once a call has its answer, whether somebody waits for it or not.
  Clock::Time TidyDeadline() const { return Clock::Real().Now() + timeout; }
  // Held by who changes a sample, so that the threads of one server do not make each other's changes void. That
  // different servers do not is up to the version that each change compares.
  Mutex& WriterLock(int64_t handle) { return writer_locks[static_cast<uint64_t>(handle) % writer_locks.size()]; }

  RedisTrouble trouble;
  const std::shared_ptr<RedisCluster> cluster;
  const RedisKeys keys;
  const Clock& clock;
  RedisTime time;
  std::chrono::milliseconds timeout{0};       // Of a step of a call.
  std::chrono::milliseconds reader_grace{0};  // So long a block that was replaced can still be read.
  std::string server;                         // Tells this one from all others.
  std::function<int64_t(absl::string_view)> handle_of;
  ContentIds content_ids;
  ContentIds block_ids;  // Random start: two servers do not give one sample the same number.
  KnownSamples known;
  std::array<Mutex, 256> writer_locks;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_CONTEXT_H_
