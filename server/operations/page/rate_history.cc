#include "server/operations/page/rate_history.h"

#include <algorithm>

namespace routing_replay::server {

void RateHistory::Add(Clock::Time now, const Totals& totals) {
  MutexLock lock(mutex_);
  samples_[next_] = {now, totals};
  next_ = (next_ + 1) % kSamples;
  size_ = std::min(size_ + 1, kSamples);
}

RateHistory::Rates RateHistory::Get(Series series) const {
  MutexLock lock(mutex_);
  Rates rates;
  if (size_ < 2) return rates;
  const size_t oldest = size_ - 1;
  rates.span = Back(0).time - Back(oldest).time;
  const size_t points = std::min(oldest, kPoints);
  for (size_t i = 0; i < points; ++i) {
    rates.per_second.push_back(RateBetween(oldest - oldest * i / points, oldest - oldest * (i + 1) / points, series));
  }
  constexpr size_t kMinute = std::chrono::milliseconds(std::chrono::minutes(1)) / kInterval;
  rates.last_minute = RateBetween(std::min(oldest, kMinute), 0, series);
  return rates;
}

const RateHistory::Sample& RateHistory::Back(size_t age) const {
  return samples_[(next_ + 2 * kSamples - 1 - age) % kSamples];
}

double RateHistory::RateBetween(size_t older, size_t newer, Series series) const {
  const std::chrono::duration<double> took = Back(newer).time - Back(older).time;
  const double grew = Back(newer).totals[series] - Back(older).totals[series];
  return took.count() > 0 ? grew / took.count() : 0;
}

}  // namespace routing_replay::server
