// One writer at a time in a directory.
#ifndef PROTO_EXPORTED_DIRECTORY_LOCK_H_
#define PROTO_EXPORTED_DIRECTORY_LOCK_H_

#include <filesystem>

#include "absl/status/statusor.h"

namespace routing_replay {
inline namespace wire {

// An empty file that stays in the directory, since whoever waits for it may have it open already.
inline constexpr char kExportLock[] = "lock";

// Held until it is destroyed or the process ends, however that comes; a child that was forked meanwhile does not hold
// it on.
class DirectoryLock {
 public:
  using FlockFunction = int (*)(int descriptor, int operation);

  DirectoryLock() = default;  // Of no directory.
  // Makes the file if it is not there. ABORTED if somebody else holds it, in this process or another one;
  // FAILED_PRECONDITION where the file system has no locks, which says what to mount; ALREADY_EXISTS if something else
  // has the name; INTERNAL with what the system says. Tests give another `flock`.
  static absl::StatusOr<DirectoryLock> Take(const std::filesystem::path& directory, FlockFunction flock = SystemFlock);
  DirectoryLock(DirectoryLock&& other) noexcept;
  DirectoryLock& operator=(DirectoryLock&& other) noexcept;
  ~DirectoryLock();

 private:
  explicit DirectoryLock(int descriptor) : descriptor_(descriptor) {}
  static int SystemFlock(int descriptor, int operation);

  int descriptor_ = -1;
};

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_EXPORTED_DIRECTORY_LOCK_H_
