#include "proto/wire/backoff.h"

#include <algorithm>
#include <random>
#include <utility>

namespace routing_replay {
inline namespace wire {
namespace {

std::function<double()> SeededRandom() {
  return [engine = std::mt19937(std::random_device()())]() mutable {
    return std::uniform_real_distribution<double>(0, 1)(engine);
  };
}

Clock::Duration Scale(Clock::Duration duration, double factor) {
  return std::chrono::duration_cast<Clock::Duration>(duration * factor);
}

}  // namespace

Backoff::Backoff(const Options& options, std::function<double()> random)
    : options_(options), random_(random ? std::move(random) : SeededRandom()), nominal_(options.initial) {}

Clock::Duration Backoff::Next() {
  const double spread = 1 - options_.jitter + 2 * options_.jitter * random_();
  const Clock::Duration wait = std::min(options_.maximum, Scale(nominal_, spread));
  nominal_ = std::min(options_.maximum, Scale(nominal_, options_.factor));
  return wait;
}

}  // namespace wire
}  // namespace routing_replay
