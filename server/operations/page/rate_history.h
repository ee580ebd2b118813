// The last hour of some counters, as rates.
#ifndef SERVER_OPERATIONS_PAGE_RATE_HISTORY_H_
#define SERVER_OPERATIONS_PAGE_RATE_HISTORY_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <vector>

#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"

namespace routing_replay::server {

// A ring of fixed size. Thread-safe.
class RateHistory {
 public:
  static constexpr std::chrono::milliseconds kInterval = std::chrono::seconds(5);
  static constexpr size_t kSamples = 721;  // An hour of intervals.
  static constexpr size_t kPoints = 120;

  enum Series { kIngestBytes, kEgressBytes, kCalls, kTroubledCalls, kNumSeries };
  using Totals = std::array<double, kNumSeries>;

  // Call it about every kInterval, with totals that never fall.
  void Add(Clock::Time now, const Totals& totals);

  struct Rates {
    Clock::Duration span{};  // From the oldest sample to the newest.
    std::vector<double>
        per_second;          // At most kPoints, of parts of the span of about the same length, the oldest first.
    double last_minute = 0;  // Mean per second.
  };
  Rates Get(Series series) const;

 private:
  struct Sample {
    Clock::Time time;
    Totals totals;
  };
  // `age` samples before the newest.
  const Sample& Back(size_t age) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  double RateBetween(size_t older, size_t newer, Series series) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::array<Sample, kSamples> samples_ ABSL_GUARDED_BY(mutex_);
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t size_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_PAGE_RATE_HISTORY_H_
