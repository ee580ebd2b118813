#include "server/store/spill/spill_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

constexpr char kLockName[] = "routing-replay-spill.lock";
// Of every file that is written here, before the name that the caller gives it.
constexpr char kPrefix[] = "routing-replay-spill-";

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

absl::Status WriteFailure(const std::string& path) {
  const int error = errno;
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return absl::Status(full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable,
                      absl::StrCat(path, ": ", std::strerror(error)));
}

absl::Status ReadFailure(const std::string& path) {
  const int error = errno;
  const bool lost = error == EIO || error == ENOENT;
  return absl::Status(lost ? absl::StatusCode::kDataLoss : absl::StatusCode::kUnavailable,
                      absl::StrCat(path, ": ", std::strerror(error)));
}

class SpillDirectory final : public SpillDisk {
 public:
  SpillDirectory(std::filesystem::path path, FileDescriptor lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  absl::Status Write(const std::string& name, int64_t offset,
                     absl::Span<const absl::Span<const uint8_t>> parts) override;
  absl::Status Read(const std::string& name, int64_t offset, absl::Span<uint8_t> bytes) const override;
  void Remove(const std::string& name) override { unlink(PathOf(name).c_str()); }

 private:
  std::string PathOf(const std::string& name) const { return path_ / absl::StrCat(kPrefix, name); }

  const std::filesystem::path path_;
  const FileDescriptor lock_;  // Held as long as it is open.
};

absl::Status SpillDirectory::Write(const std::string& name, int64_t offset,
                                   absl::Span<const absl::Span<const uint8_t>> parts) {
  const std::string path = PathOf(name);
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (!file.ok()) return WriteFailure(path);
  std::vector<iovec> left;
  for (absl::Span<const uint8_t> part : parts) {
    if (!part.empty()) left.push_back({const_cast<uint8_t*>(part.data()), part.size()});
  }
  for (size_t first = 0; first < left.size();) {
    const auto count = static_cast<int>(std::min<size_t>(left.size() - first, IOV_MAX));
    ssize_t written = pwritev(file.get(), &left[first], count, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return WriteFailure(path);
    offset += written;
    while (first < left.size() && written >= static_cast<ssize_t>(left[first].iov_len)) {
      written -= static_cast<ssize_t>(left[first++].iov_len);
    }
    if (written > 0) {
      left[first].iov_base = static_cast<uint8_t*>(left[first].iov_base) + written;
      left[first].iov_len -= written;
    }
  }
  return absl::OkStatus();
}

absl::Status SpillDirectory::Read(const std::string& name, int64_t offset, absl::Span<uint8_t> bytes) const {
  const std::string path = PathOf(name);
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.ok()) return ReadFailure(path);
  while (!bytes.empty()) {
    const ssize_t got = pread(file.get(), bytes.data(), bytes.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ReadFailure(path);
    if (got == 0) return absl::DataLossError(absl::StrCat(path, " ends at ", offset));
    offset += got;
    bytes.remove_prefix(got);
  }
  return absl::OkStatus();
}

absl::Status RemoveLeftFiles(const std::filesystem::path& path) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    const std::string name = entry.path().filename();
    if (name == kLockName || !absl::StartsWith(name, kPrefix)) continue;
    if (unlink(entry.path().c_str()) != 0) return WriteFailure(entry.path());
  }
  return error ? absl::UnavailableError(absl::StrCat(path.string(), ": ", error.message())) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<SpillDisk>> OpenSpillDirectory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return absl::UnavailableError(absl::StrCat(path, ": ", error.message()));
  const std::string lock_path = std::filesystem::path(path) / kLockName;
  FileDescriptor lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.ok()) return WriteFailure(lock_path);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is the spill directory of another process"));
  }
  if (absl::Status status = RemoveLeftFiles(path); !status.ok()) return status;
  return std::make_shared<SpillDirectory>(path, std::move(lock));
}

}  // namespace routing_replay::server
