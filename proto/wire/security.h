// Security code of server and clients: which addresses only this machine can use, files of keys and tokens that are
// read again when they change, and a deleter of OpenSSL's objects.
#ifndef PROTO_WIRE_SECURITY_H_
#define PROTO_WIRE_SECURITY_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace routing_replay {
inline namespace wire {

// True for "unix:PATH", and for "host:port" or "[v6]:port" with a loopback address (127.0.0.0/8, ::1) or the name
// "localhost". Other names count as remote: nothing is resolved.
bool IsLocalAddress(absl::string_view address);

// A small file that is read again when it changes: tokens and keys. Not thread-safe. Each Look costs one stat of the
// file.
class ChangingFile {
 public:
  explicit ChangingFile(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  // The contents of the file if they may have changed since the last look; nothing if they have not. A file that cannot
  // be read, or is over 1 MiB, is an error that names it, once per change. The next look notices a replacement by
  // rename, a change of a symbolic link on the path, and a change in place.
  absl::StatusOr<std::optional<std::string>> Look();

 private:
  // Identifies one state of a file: device, inode, size, and the times of the last change of status and contents. All 0
  // if the file does not exist.
  using Stamp = std::array<int64_t, 5>;

  const std::string path_;
  std::optional<Stamp> seen_;  // Unset: the next look reads the file.
};

// std::unique_ptr<X509, OpenSslFree<X509_free>>
template <auto free_function>
struct OpenSslFree {
  template <typename T>
  void operator()(T* object) const {
    free_function(object);
  }
};

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_SECURITY_H_
