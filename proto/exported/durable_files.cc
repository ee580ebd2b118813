#include "proto/exported/durable_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/exported/files.h"
#include "proto/wire/mutex.h"

namespace routing_replay {
inline namespace wire {
namespace {

// A file system writes what many wait for at once; more than so many gain little on any.
constexpr size_t kSyncThreads = 16;

absl::Status Result(const std::error_code& error, const std::filesystem::path& path) {
  return error ? absl::InternalError(absl::StrCat(path.string(), ": ", error.message())) : absl::OkStatus();
}

std::error_code LastError() { return {errno, std::generic_category()}; }

// A file's contents, or a directory's names. What was written through another descriptor is synced as well.
std::error_code SyncOne(const std::filesystem::path& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return LastError();
  const std::error_code error = fsync(descriptor) == 0 ? std::error_code() : LastError();
  close(descriptor);
  return error;
}

// Takes files from a shared list until it is through or one failed.
class SyncAll {
 public:
  explicit SyncAll(absl::Span<const std::filesystem::path> files) : files_(files) {}

  absl::Status Run() {
    std::vector<std::thread> others;
    while (others.size() + 1 < std::min(files_.size(), kSyncThreads)) others.emplace_back([this] { Work(); });
    Work();
    for (std::thread& thread : others) thread.join();
    const MutexLock lock(mutex_);
    return status_;
  }

 private:
  void Work() {
    for (size_t i = next_++; i < files_.size() && !failed_; i = next_++) {
      const std::error_code error = SyncOne(files_[i]);
      if (!error) continue;
      failed_ = true;
      const MutexLock lock(mutex_);
      status_.Update(Result(error, files_[i]));
    }
  }

  const absl::Span<const std::filesystem::path> files_;
  std::atomic<size_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

DurableFiles& DurableFiles::Real() {
  static DurableFiles files;
  return files;
}

absl::Status DurableFiles::Write(const std::filesystem::path& path, absl::Span<const absl::Span<const uint8_t>> parts) {
  return WriteNewFile(path, parts);
}

absl::Status DurableFiles::Append(const std::filesystem::path& path, absl::Span<const uint8_t> bytes) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return Result(LastError(), path);
  std::error_code error;
  while (!bytes.empty() && !error) {
    const ssize_t written = write(descriptor, bytes.data(), bytes.size());
    if (written >= 0) bytes.remove_prefix(static_cast<size_t>(written));
    if (written < 0 && errno != EINTR) error = LastError();
  }
  if (close(descriptor) != 0 && !error) error = LastError();
  return Result(error, path);
}

absl::Status DurableFiles::Sync(absl::Span<const std::filesystem::path> files) { return SyncAll(files).Run(); }

absl::Status DurableFiles::Rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code error;
  std::filesystem::rename(from, to, error);
  return Result(error, to);
}

absl::Status DurableFiles::Remove(const std::filesystem::path& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return Result(LastError(), path);
}

absl::Status DurableFiles::SyncDirectory(const std::filesystem::path& directory) {
  const std::error_code error = SyncOne(directory);
  return error == std::errc::invalid_argument ? absl::OkStatus() : Result(error, directory);
}

absl::Status DurableFiles::MakeDirectories(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(directory, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  std::vector<std::filesystem::path> parents;
  for (; !error && path.has_relative_path() && !std::filesystem::exists(path, error); path = path.parent_path()) {
    parents.push_back(path.parent_path());
  }
  if (!error) std::filesystem::create_directories(directory, error);
  if (error) return DirectoryError(error, directory);
  // An export that was stopped may have made the one that was there.
  if (access(path.parent_path().c_str(), R_OK) == 0) parents.push_back(path.parent_path());
  absl::Status status;
  for (const std::filesystem::path& parent : parents) status.Update(SyncDirectory(parent));
  return status;
}

absl::Status DurableFiles::Replace(const std::filesystem::path& path, const std::filesystem::path& part,
                                   absl::Span<const absl::Span<const uint8_t>> parts) {
  absl::Status status = Remove(part);
  if (status.ok()) status = Write(part, parts);
  if (status.ok()) status = Sync({part});
  if (status.ok()) status = Rename(part, path);
  return status;
}

}  // namespace wire
}  // namespace routing_replay
