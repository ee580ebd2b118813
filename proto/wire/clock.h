// Clocks. Code gets its clock as a parameter, so tests can set the time.
#ifndef PROTO_WIRE_CLOCK_H_
#define PROTO_WIRE_CLOCK_H_

#include <algorithm>
#include <atomic>
#include <chrono>

namespace routing_replay {
inline namespace wire {

// Thread-safe.
class Clock {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  virtual ~Clock() = default;
  virtual Time Now() const = 0;  // Monotonic.
  // The time of day, for times that are written down and outlive the process. May jump.
  virtual std::chrono::system_clock::time_point TimeOfDay() const = 0;

  // The machine's clock. Never destroyed.
  static const Clock& Real();
};

// `now` + `timeout`, limited to between `now` and a hundred years later, so that neither a timeout that means "forever"
// nor a very negative one overflows.
inline Clock::Time DeadlineAfter(Clock::Time now, std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kForEver = std::chrono::hours(24 * 365 * 100);
  return now + std::clamp(timeout, std::chrono::milliseconds(0), kForEver);
}

class RealClock final : public Clock {
 public:
  Time Now() const override { return std::chrono::steady_clock::now(); }
  std::chrono::system_clock::time_point TimeOfDay() const override { return std::chrono::system_clock::now(); }
};

inline const Clock& Clock::Real() {
  static const RealClock clock;
  return clock;
}

// A clock that stands still until Advance is called.
class ManualClock final : public Clock {
 public:
  Time Now() const override { return Time(Duration(ticks_.load())); }
  std::chrono::system_clock::time_point TimeOfDay() const override {
    return std::chrono::system_clock::time_point(
        std::chrono::duration_cast<std::chrono::system_clock::duration>(Duration(ticks_.load())));
  }
  void Advance(Duration by) { ticks_ += by.count(); }

 private:
  std::atomic<Duration::rep> ticks_{std::chrono::duration_cast<Duration>(std::chrono::hours(1)).count()};
};

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_CLOCK_H_
