// One writer at a time in a directory.
#ifndef PROTO_EXPORTED_DIRECTORY_LOCK_H_
#define PROTO_EXPORTED_DIRECTORY_LOCK_H_

#include <filesystem>

#include "absl/status/statusor.h"

namespace routing_replay {

// Held until it is destroyed or the process ends, however that comes. Leaves nothing in the directory. On file systems
// without flock it keeps nobody out.
class DirectoryLock {
 public:
  DirectoryLock() = default;  // Of no directory.
  // ABORTED if somebody else holds it, in this process or another one; INTERNAL with what the system says.
  static absl::StatusOr<DirectoryLock> Take(const std::filesystem::path& directory);
  DirectoryLock(DirectoryLock&& other) noexcept;
  DirectoryLock& operator=(DirectoryLock&& other) noexcept;
  ~DirectoryLock();

 private:
  explicit DirectoryLock(int descriptor) : descriptor_(descriptor) {}

  int descriptor_ = -1;
};

}  // namespace routing_replay

#endif  // PROTO_EXPORTED_DIRECTORY_LOCK_H_
