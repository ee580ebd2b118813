// Whether and when a memory store moves cold samples to a disk.
#ifndef SERVER_STORE_MEMORY_SPILL_OPTIONS_H_
#define SERVER_STORE_MEMORY_SPILL_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "server/store/spill/spill_disk.h"

namespace routing_replay::server {

struct SpillOptions {
  std::shared_ptr<SpillDisk> disk;            // None: nothing is spilled.
  int64_t budget_bytes = int64_t{64} << 30;   // Of the disk.
  int64_t segment_bytes = int64_t{64} << 20;  // Of one file.
  double begin = 0.75;                        // Once so much of the memory budget is in use …
  double end = 0.5;                           // … samples go until no more than this is.
  bool background = true;                     // On a thread of its own; otherwise whoever calls Look does the work.
  std::chrono::milliseconds pause{1000};      // After a failure, before the next try.
  std::function<void(const std::string&)> warn = [](const std::string&) {};  // Once for failures in a row. Any thread.
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_MEMORY_SPILL_OPTIONS_H_
