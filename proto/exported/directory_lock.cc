#include "proto/exported/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/exported/files.h"

namespace routing_replay {
inline namespace wire {
namespace {

absl::Status NoLocks(const std::filesystem::path& path, const std::string& reason) {
  return absl::FailedPreconditionError(
      absl::StrCat(path.string(), ": the file system takes no locks (", reason,
                   "), so nothing would keep two exports apart. Mount it with them (Lustre: -o flock; NFS: version 4, "
                   "or version 3 with lockd and without -o nolock), or export to another one"));
}

}  // namespace

int DirectoryLock::SystemFlock(int descriptor, int operation) { return ::flock(descriptor, operation); }

absl::StatusOr<DirectoryLock> DirectoryLock::Take(const std::filesystem::path& directory, FlockFunction flock) {
  const std::filesystem::path path = directory / kExportLock;
  const auto reason = [] { return std::generic_category().message(errno); };
  // NFS locks only what can be written. Never waits, whatever has the name.
  DirectoryLock lock(open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
  struct stat kind = {};
  if (lock.descriptor_ < 0 || fstat(lock.descriptor_, &kind) != 0) {
    if (errno == ELOOP || errno == EISDIR) return absl::AlreadyExistsError(absl::StrCat(path.string(), ": is no file"));
    return DirectoryError({errno, std::generic_category()}, path);
  }
  if (!S_ISREG(kind.st_mode)) return absl::AlreadyExistsError(absl::StrCat(path.string(), ": is no file"));
  if (flock(lock.descriptor_, LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno == EWOULDBLOCK) {
    return absl::AbortedError(absl::StrCat(directory.string(), ": another export writes to it"));
  }
  if (errno == EIO) return absl::InternalError(absl::StrCat(path.string(), ": ", reason()));
  return NoLocks(path, reason());
}

DirectoryLock::DirectoryLock(DirectoryLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

DirectoryLock& DirectoryLock::operator=(DirectoryLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

DirectoryLock::~DirectoryLock() {
  if (descriptor_ < 0) return;
  // Closing leaves the lock with a child that was forked and has the descriptor, too.
  (void)::flock(descriptor_, LOCK_UN);
  close(descriptor_);
}

}  // namespace wire
}  // namespace routing_replay
