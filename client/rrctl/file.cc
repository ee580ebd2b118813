#include "client/rrctl/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "proto/wire/human.h"

namespace routing_replay::client {
namespace {

// More than any server takes in one append.
constexpr int64_t kMaxFileBytes = int64_t{1} << 30;
constexpr size_t kReadBytes = size_t{1} << 20;

absl::StatusOr<std::vector<uint8_t>> ReadAll(std::istream& input, const std::string& name) {
  std::vector<uint8_t> bytes;
  while (input.good()) {
    const size_t size = bytes.size();
    bytes.resize(size + kReadBytes);
    input.read(reinterpret_cast<char*>(bytes.data() + size), kReadBytes);
    bytes.resize(size + input.gcount());
    if (static_cast<int64_t>(bytes.size()) > kMaxFileBytes) {
      return absl::InvalidArgumentError(absl::StrCat(name, " has more than ", HumanBytes(kMaxFileBytes),
                                                     ", which no append may have; put it in parts"));
    }
  }
  if (input.bad()) return absl::DataLossError(absl::StrCat("cannot read ", name));
  return bytes;
}

}  // namespace

absl::StatusOr<std::vector<uint8_t>> ReadFile(const std::string& path, std::istream& input) {
  if (path == "-") return ReadAll(input, "standard input");
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return ReadAll(file, path);
}

absl::Status WriteFile(const std::string& path, absl::string_view bytes) {
  // Nobody else who may write into the folder knows the name beforehand, and puts a link there.
  const std::string part = absl::StrCat(path, ".", absl::Hex(std::random_device()(), absl::kZeroPad8), ".part");
  const int fd = open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd < 0) return absl::InvalidArgumentError(absl::StrCat("cannot write ", part, ": ", std::strerror(errno)));
  bool written = true;
  while (written && !bytes.empty()) {
    const ssize_t size = write(fd, bytes.data(), bytes.size());
    written = size > 0;
    bytes.remove_prefix(std::max<ssize_t>(size, 0));
  }
  written = close(fd) == 0 && written && rename(part.c_str(), path.c_str()) == 0;
  if (written) return absl::OkStatus();
  const int error = errno;
  unlink(part.c_str());
  return absl::DataLossError(absl::StrCat("cannot write ", path, ": ", std::strerror(error)));
}

}  // namespace routing_replay::client
