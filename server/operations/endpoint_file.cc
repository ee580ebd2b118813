#include "server/operations/endpoint_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

constexpr mode_t kMode = 0644;  // Others are to find the server.

absl::Status CannotWrite(const std::string& path, int error) {
  return absl::InvalidArgumentError(absl::StrCat("--endpoint-file: cannot write ", path, ": ", std::strerror(error)));
}

std::string ContentOf(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path).rdbuf();
  return content.str();
}

}  // namespace

EndpointFile::Identity EndpointFile::IdentityOf(const std::string& path) {
  struct stat file {};
  if (stat(path.c_str(), &file) != 0) return std::nullopt;
  return std::pair(file.st_dev, file.st_ino);
}

// The numbers of removed files are given again, so the content must be the same, too.
EndpointFile::~EndpointFile() {
  if (identity_ && IdentityOf(path_) == identity_ && ContentOf(path_) == content_) unlink(path_.c_str());
}

absl::StatusOr<std::unique_ptr<EndpointFile>> EndpointFile::Write(const std::string& path, const std::string& address) {
  // By a name that nobody else in the folder can have taken, or led elsewhere.
  std::string part = path + ".XXXXXX";
  const int fd = mkostemp(part.data(), O_CLOEXEC);
  if (fd < 0) return CannotWrite(path, errno);
  const absl::Cleanup close_file = [fd] { close(fd); };
  const std::string content = address + "\n";
  const auto identity = IdentityOf(part);
  if (write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()) && fchmod(fd, kMode) == 0 &&
      std::rename(part.c_str(), path.c_str()) == 0) {
    return std::unique_ptr<EndpointFile>(new EndpointFile(path, content, identity));
  }
  const absl::Status failed = CannotWrite(path, errno);
  unlink(part.c_str());
  return failed;
}

}  // namespace routing_replay::server
