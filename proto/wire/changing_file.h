// A small file that is read again whenever it changes: tokens and the like.
#ifndef PROTO_WIRE_CHANGING_FILE_H_
#define PROTO_WIRE_CHANGING_FILE_H_

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace routing_replay {
inline namespace wire {

// Not thread-safe. A look costs one stat of the file.
class ChangingFile {
 public:
  explicit ChangingFile(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  // What is in the file, if it may be something else than at the last look; nothing if it is the same. A file that
  // cannot be read, or is over 1 MiB, is an error naming it, once per change. A replacement by rename, a change of a
  // symbolic link on the way and a change in place are all seen at the next look.
  absl::StatusOr<std::optional<std::string>> Look();

 private:
  // What tells one state of a file from another.
  struct Stamp {
    bool exists = false;
    dev_t device = 0;
    ino_t inode = 0;
    int64_t size = 0;
    int64_t modified_ns = 0;
    int64_t changed_ns = 0;
    friend bool operator==(const Stamp&, const Stamp&) = default;
  };
  static Stamp StampOf(const struct stat& status);

  const std::string path_;
  std::optional<Stamp> seen_;  // Nothing: look for sure.
};

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_CHANGING_FILE_H_
