// A cache of the step's rows before a source.
#include <chrono>
#include <utility>

#include "proto/json/json.h"
#include "trainer_plugin/capi/objects.h"

using namespace routing_replay;           // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;     // NOLINT(build/namespaces)
using namespace routing_replay::trainer;  // NOLINT(build/namespaces)

rrt_error* rrt_step_cache_new(int64_t max_bytes, rrt_step_cache** cache) {
  return Guard([&]() -> absl::Status {
    if (max_bytes < 0) return Invalid(Reason::kField, "max_bytes", "is negative");
    *cache = new rrt_step_cache{std::make_shared<StepCache>(max_bytes)};
    return absl::OkStatus();
  });
}

void rrt_step_cache_free(rrt_step_cache* cache) { delete cache; }

rrt_error* rrt_step_cache_attach(const rrt_step_cache* cache, rrt_fetch* fetch, int32_t ahead) {
  return Guard([&]() -> absl::Status {
    if (ahead < 0 || ahead > 2) return Invalid(Reason::kField, "ahead", "is none of 0, 1, 2");
    if (fetch->cached != nullptr) return Invalid(Reason::kField, "fetch", "has a cache already");
    fetch->cached = std::make_unique<CachedFetch>(cache->cache, fetch->plan.described.plan, fetch->sequences,
                                                  fetch->options, fetch->run, static_cast<FetchTime>(ahead));
    return absl::OkStatus();
  });
}

rrt_error* rrt_step_cache_detach(rrt_fetch* fetch) {
  return Guard([&] {
    fetch->cached = nullptr;
    return absl::OkStatus();
  });
}

rrt_error* rrt_step_cache_next(rrt_fetch* fetch, int64_t timeout_ms, int32_t* reads) {
  return Guard([&]() -> absl::Status {
    CachedFetch* cached = fetch->cached.get();
    if (cached == nullptr) return Invalid(Reason::kField, "fetch", "has no cache");
    if (fetch->ended) cached->Give(fetch->staged);
    if (cached->IsReading()) {
      return MakeError(absl::StatusCode::kFailedPrecondition, "fetch: what it was to read has not ended",
                       {.field = "fetch"});
    }
    fetch->ended = false;
    auto slices = cached->Next(DeadlineAfter(Clock::Real().Now(), std::chrono::milliseconds(timeout_ms)));
    if (!slices.ok()) {
      // The fetch has nothing of its own that is being read; giving up takes what is there.
      fetch->ended = true;
      return slices.status();
    }
    if (!slices->empty()) {
      StartReading(*fetch, *std::move(slices));
      *reads = 1;
      return absl::OkStatus();
    }
    auto staged = cached->Take("");
    if (!staged.ok()) return staged.status();
    fetch->staged = *std::move(staged);
    fetch->ended = true;
    *reads = 0;
    return absl::OkStatus();
  });
}

rrt_error* rrt_step_cache_end_step(rrt_step_cache* cache) {
  return Guard([&] {
    cache->cache->EndStep();
    return absl::OkStatus();
  });
}

rrt_error* rrt_step_cache_stop(rrt_step_cache* cache) {
  return Guard([&] {
    cache->cache->Stop();
    return absl::OkStatus();
  });
}

rrt_error* rrt_step_cache_counters(const rrt_step_cache* cache, rrt_step_cache_counts* counts) {
  return Guard([&] {
    const StepCache::Counters counters = cache->cache->counters();
    *counts = {.hits = counters.hits,
               .misses = counters.misses,
               .ahead = counters.ahead,
               .stale = counters.stale,
               .evictions = counters.evictions,
               .not_kept = counters.not_kept,
               .bytes = counters.bytes,
               .most_bytes = counters.most_bytes,
               .slices = counters.slices,
               .bytes_read = counters.bytes_read};
    return absl::OkStatus();
  });
}
