// Ends this process with another one.
#ifndef SERVER_OPERATIONS_PROCESS_WATCH_H_
#define SERVER_OPERATIONS_PROCESS_WATCH_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"

namespace routing_replay::server {

// Calls a function once another process has ended, however it ended. Nothing is called once this is destroyed.
class ProcessWatch {
 public:
  // `on_end` is called at most once, from a thread of the watch, and must not destroy it. NOT_FOUND where there is no
  // process `pid` (any more); UNIMPLEMENTED where the kernel has no pidfd_open (before Linux 5.3).
  static absl::StatusOr<std::unique_ptr<ProcessWatch>> Start(int pid, std::function<void()> on_end);
  virtual ~ProcessWatch() = default;
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_PROCESS_WATCH_H_
