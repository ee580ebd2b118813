// What the process takes of the machine, as the system tells it.
#ifndef SERVER_OPERATIONS_PROCESS_USAGE_H_
#define SERVER_OPERATIONS_PROCESS_USAGE_H_

#include <cstdint>

namespace routing_replay::server {

struct ProcessUsage {
  double cpu_seconds = 0;         // User and system.
  double start_time_seconds = 0;  // Since 1970.
  int64_t resident_bytes = 0;
  int64_t virtual_bytes = 0;
  int64_t threads = 0;
  int64_t open_fds = 0;
  int64_t max_fds = 0;
};

// Thread-safe.
ProcessUsage LookAtProcess();

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_PROCESS_USAGE_H_
