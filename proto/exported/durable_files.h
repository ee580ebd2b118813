// What an export does to the disk, step by step: tests put another one in its place to end an export at any step.
#ifndef PROTO_EXPORTED_DURABLE_FILES_H_
#define PROTO_EXPORTED_DURABLE_FILES_H_

#include <cstdint>
#include <filesystem>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace routing_replay {
inline namespace wire {

// All of them: INTERNAL with what the system says. None follows a link in the place of a file that it writes.
class DurableFiles {
 public:
  static DurableFiles& Real();  // Thread-safe.
  virtual ~DurableFiles() = default;

  // A whole new file, in the hands of the operating system when this returns. ALREADY_EXISTS if the name is taken.
  virtual absl::Status Write(const std::filesystem::path& path, absl::Span<const absl::Span<const uint8_t>> parts);
  // Behind what the file holds. In the hands of the operating system when this returns.
  virtual absl::Status Append(const std::filesystem::path& path, absl::Span<const uint8_t> bytes);
  // What these files hold is on the disk; their names are only after SyncDirectory. Several at a time.
  virtual absl::Status Sync(absl::Span<const std::filesystem::path> files);
  // In place of a file that has the name already.
  virtual absl::Status Rename(const std::filesystem::path& from, const std::filesystem::path& to);
  // One that is not there is removed; a folder is not.
  virtual absl::Status Remove(const std::filesystem::path& path);
  // The names in it, where the file system syncs such.
  virtual absl::Status SyncDirectory(const std::filesystem::path& directory);

  // With those above it, as far as they are not there. Their names are on the disk when this returns, also that of a
  // directory that was there, unless the one above it is not ours to read.
  absl::Status MakeDirectories(const std::filesystem::path& directory);
  // `path` with these parts, or as it was: written and synced as `part` first. The name is as with Rename.
  absl::Status Replace(const std::filesystem::path& path, const std::filesystem::path& part,
                       absl::Span<const absl::Span<const uint8_t>> parts);
};

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_EXPORTED_DURABLE_FILES_H_
