// What spilled blocks are written to.
#ifndef SERVER_STORE_SPILL_SPILL_DISK_H_
#define SERVER_STORE_SPILL_SPILL_DISK_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace routing_replay::server {

// Files that grow at their end, are read anywhere and go as a whole. Thread-safe; a file is written by one thread at a
// time. Tests inject failures here.
class SpillDisk {
 public:
  virtual ~SpillDisk() = default;

  // `parts`, one behind the other, from `offset` on; makes the file if it is not there. RESOURCE_EXHAUSTED if there is
  // no room, UNAVAILABLE for any other failure: then the file may hold anything from `offset` on.
  virtual absl::Status Write(const std::string& name, int64_t offset,
                             absl::Span<const absl::Span<const uint8_t>> parts) = 0;
  // Fills `bytes` from `offset` on. DATA_LOSS if they are not there or the disk cannot read them, UNAVAILABLE if they
  // cannot be read now.
  virtual absl::Status Read(const std::string& name, int64_t offset, absl::Span<uint8_t> bytes) const = 0;
  // No effect if it is not there.
  virtual void Remove(const std::string& name) = 0;
};

// The files of a directory, which is made if it is not there. Its files are nothing to another process: those that one
// left behind are removed here, and what has another name is left alone. FAILED_PRECONDITION while another process has
// the directory open, UNAVAILABLE if it cannot be used.
absl::StatusOr<std::shared_ptr<SpillDisk>> OpenSpillDirectory(const std::string& path);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_SPILL_SPILL_DISK_H_
