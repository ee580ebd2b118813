#include "proto/exported/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace routing_replay {

absl::StatusOr<DirectoryLock> DirectoryLock::Take(const std::filesystem::path& directory) {
  DirectoryLock lock(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.descriptor_ < 0) {
    return absl::InternalError(absl::StrCat(directory.string(), ": ", std::generic_category().message(errno)));
  }
  if (flock(lock.descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return lock;
  return absl::AbortedError(absl::StrCat(directory.string(), ": another export writes to it"));
}

DirectoryLock::DirectoryLock(DirectoryLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

DirectoryLock& DirectoryLock::operator=(DirectoryLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

DirectoryLock::~DirectoryLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace routing_replay
