// What the security of both sides stands on: which addresses are of this machine, files of keys and tokens that are
// read again when they change, and owners of OpenSSL's objects.
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
// "localhost". Other names count as elsewhere: nothing is resolved.
bool IsLocalAddress(absl::string_view address);

// A small file that is read again when it changes: tokens and keys. Not thread-safe. A look costs one stat of the file.
class ChangingFile {
 public:
  explicit ChangingFile(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  // What is in the file, if it may be something else than at the last look; nothing if it is the same. A file that
  // cannot be read, or is over 1 MiB, is an error naming it, once per change. A replacement by rename, a change of a
  // symbolic link on the way and a change in place are all seen at the next look.
  absl::StatusOr<std::optional<std::string>> Look();

 private:
  // What tells one state of a file from another: device, inode, size, and when it and its contents changed. All 0:
  // there is none.
  using Stamp = std::array<int64_t, 5>;

  const std::string path_;
  std::optional<Stamp> seen_;  // Nothing: look for sure.
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
