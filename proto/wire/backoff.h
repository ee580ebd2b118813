// How long to wait before a retry. All retries in the project use this.
#ifndef PROTO_WIRE_BACKOFF_H_
#define PROTO_WIRE_BACKOFF_H_

#include <algorithm>
#include <functional>
#include <random>
#include <utility>

#include "proto/wire/clock.h"

namespace routing_replay {
inline namespace wire {

// Exponential backoff with jitter. Not thread-safe; copies are independent.
class Backoff {
 public:
  struct Options {
    Clock::Duration initial = std::chrono::milliseconds(50);
    Clock::Duration maximum = std::chrono::seconds(5);
    double factor = 2;
    // Each wait is made longer or shorter by a random share of at most this, so that clients do not retry all at once.
    double jitter = 0.2;
  };

  // `random` returns numbers in [0, 1); the default has a seed per thread.
  explicit Backoff(const Options& options, std::function<double()> random = AnyNumber)
      : options_(options), random_(std::move(random)), nominal_(options.initial) {}

  // The next wait: initial, initial * factor, …, with jitter, never above maximum.
  Clock::Duration Next() {
    const double spread = 1 - options_.jitter + 2 * options_.jitter * random_();
    const Clock::Duration wait = std::min(options_.maximum, Scale(nominal_, spread));
    nominal_ = std::min(options_.maximum, Scale(nominal_, options_.factor));
    return wait;
  }
  // To be called after a success: the next wait is `initial` again.
  void Reset() { nominal_ = options_.initial; }

 private:
  // Every call has a Backoff, and few calls ever wait. The random engine takes 20 us to construct, so it is constructed
  // at the first wait.
  static double AnyNumber() {
    thread_local std::minstd_rand engine{std::random_device()()};
    return std::uniform_real_distribution<double>(0, 1)(engine);
  }
  static Clock::Duration Scale(Clock::Duration duration, double factor) {
    return std::chrono::duration_cast<Clock::Duration>(duration * factor);
  }

  Options options_;
  std::function<double()> random_;
  Clock::Duration nominal_;
};

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_BACKOFF_H_
