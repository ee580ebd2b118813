#include "proto/exported/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <initializer_list>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace routing_replay {
inline namespace wire {
namespace {

std::string Failure(const std::filesystem::path& path, absl::string_view what) {
  return absl::StrCat(path.string(), ": ", what, ": ", std::generic_category().message(errno));
}

bool WriteAll(int descriptor, absl::Span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

absl::Status WriteNewFile(const std::filesystem::path& path, absl::Span<const absl::Span<const uint8_t>> parts) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (descriptor < 0 && errno == EEXIST) return absl::AlreadyExistsError(Failure(path, "cannot be written"));
  if (descriptor < 0) return absl::InternalError(Failure(path, "cannot be written"));
  bool written = true;
  for (const absl::Span<const uint8_t> part : parts) written = written && WriteAll(descriptor, part);
  absl::Status status = written ? absl::OkStatus() : absl::InternalError(Failure(path, "cannot be written"));
  if (close(descriptor) != 0) status.Update(absl::InternalError(Failure(path, "cannot be written")));
  if (!status.ok()) unlink(path.c_str());
  return status;
}

absl::Status DirectoryError(const std::error_code& error, const std::filesystem::path& directory) {
  const auto is_one_of = [&error](std::initializer_list<std::errc> some) {
    return std::any_of(some.begin(), some.end(), [&error](std::errc one) { return error == one; });
  };
  const std::string text = absl::StrCat(directory.string(), ": ", error.message());
  using std::errc;
  if (is_one_of({errc::permission_denied, errc::operation_not_permitted, errc::read_only_file_system})) {
    return absl::PermissionDeniedError(text);
  }
  if (is_one_of({errc::no_such_file_or_directory, errc::not_a_directory, errc::file_exists, errc::filename_too_long,
                 errc::too_many_symbolic_link_levels, errc::invalid_argument})) {
    return absl::InvalidArgumentError(text);
  }
  return absl::InternalError(text);
}

absl::StatusOr<std::vector<uint8_t>> ReadFile(const std::filesystem::path& path) {
  // What can be opened need not be a file: a folder can, and says that it is 2^63 - 1 bytes long.
  std::error_code error;
  const std::filesystem::file_status kind = std::filesystem::status(path, error);
  if (std::filesystem::exists(kind) && !std::filesystem::is_regular_file(kind)) {
    return absl::InternalError(absl::StrCat(path.string(), ": is no regular file"));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return absl::NotFoundError(Failure(path, "cannot be opened"));
  const std::streamoff size = file.tellg();
  if (size < 0) return absl::InternalError(Failure(path, "cannot be read"));
  std::vector<uint8_t> bytes(static_cast<size_t>(size));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), size);
  if (!file) return absl::InternalError(Failure(path, "cannot be read"));
  return bytes;
}

}  // namespace wire
}  // namespace routing_replay
