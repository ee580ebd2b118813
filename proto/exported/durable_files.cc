#include "proto/exported/durable_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "proto/exported/files.h"

namespace routing_replay {
namespace {

absl::Status Result(const std::error_code& error, const std::filesystem::path& path) {
  return error ? absl::InternalError(absl::StrCat(path.string(), ": ", error.message())) : absl::OkStatus();
}

std::error_code LastError() { return {errno, std::generic_category()}; }

// A file's contents, or a directory's names. What was written through another descriptor is synced as well.
absl::Status Sync(const std::filesystem::path& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return Result(LastError(), path);
  const std::error_code error = fsync(descriptor) == 0 ? std::error_code() : LastError();
  close(descriptor);
  return Result(error, path);
}

}  // namespace

DurableFiles& DurableFiles::Real() {
  static DurableFiles files;
  return files;
}

absl::Status DurableFiles::Write(const std::filesystem::path& path, absl::Span<const absl::Span<const uint8_t>> parts) {
  if (absl::Status status = WriteFile(path, parts); !status.ok()) return status;
  return Sync(path);
}

absl::Status DurableFiles::Append(const std::filesystem::path& path, absl::Span<const uint8_t> bytes) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::app);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  return file ? absl::OkStatus() : Result(LastError(), path);
}

absl::Status DurableFiles::Rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code error;
  std::filesystem::rename(from, to, error);
  return Result(error, to);
}

absl::Status DurableFiles::Remove(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::remove(path, error);
  return Result(error, path);
}

absl::Status DurableFiles::SyncDirectory(const std::filesystem::path& directory) { return Sync(directory); }

absl::Status DurableFiles::Replace(const std::filesystem::path& path,
                                   absl::Span<const absl::Span<const uint8_t>> parts) {
  const std::filesystem::path part = path.string() + ".part";
  if (absl::Status status = Write(part, parts); !status.ok()) return status;
  return Rename(part, path);
}

}  // namespace routing_replay
