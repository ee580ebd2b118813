// The time of day by a store's clock.
#ifndef SERVER_STORE_STORE_TIME_H_
#define SERVER_STORE_STORE_TIME_H_

#include <chrono>
#include <cstdint>

#include "proto/wire/clock.h"

namespace routing_replay::server {

// The time of day as servers write it down, for themselves after a restart or for each other, in ms. It goes on as the
// store's clock does; two servers' differ as their machines' clocks do. Thread-safe.
class StoreTime {
 public:
  explicit StoreTime(const Clock& clock)
      : clock_(clock),
        offset_(std::chrono::duration_cast<std::chrono::milliseconds>(clock.TimeOfDay().time_since_epoch()) -
                SinceStart()) {}
  // A time of its own, which is `now_ms` at first.
  StoreTime(const Clock& clock, int64_t now_ms)
      : clock_(clock), offset_(std::chrono::milliseconds(now_ms) - SinceStart()) {}

  int64_t NowMs() const { return (SinceStart() + offset_).count(); }

 private:
  std::chrono::milliseconds SinceStart() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(clock_.Now().time_since_epoch());
  }

  const Clock& clock_;
  const std::chrono::milliseconds offset_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_STORE_TIME_H_
