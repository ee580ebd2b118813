// When freed memory is given back to the system.
//
// The allocator keeps what was freed for whoever comes next, which makes a busy server faster: after a spike it would
// hold for ever what nobody uses.
#ifndef SERVER_OPERATIONS_MEMORY_TRIM_H_
#define SERVER_OPERATIONS_MEMORY_TRIM_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "server/operations/periodic_thread.h"

namespace routing_replay::server {

// Not thread-safe.
class MemoryTrim {
 public:
  // So much more than what is accounted is resident of a server that has nothing to give back.
  static constexpr int64_t kSlack = int64_t{48} << 20;

  // Whether to give back now what is free: the server is idle, far more is resident than `accounted` bytes, and also
  // than what was left the last time.
  bool Look(int64_t resident, int64_t accounted, bool idle);
  void Trimmed(int64_t left) { left_ = left; }

 private:
  std::optional<int64_t> left_;
};

// Looks every second. `accounted` says what the process has good reason to hold; thread-safe.
std::unique_ptr<PeriodicThread> StartMemoryTrim(std::function<int64_t()> accounted);

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_MEMORY_TRIM_H_
