// What an export does to the disk, step by step: tests put another one in its place to end an export at any step.
#ifndef PROTO_EXPORTED_DURABLE_FILES_H_
#define PROTO_EXPORTED_DURABLE_FILES_H_

#include <cstdint>
#include <filesystem>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace routing_replay {

// All of them: INTERNAL with what the system says.
class DurableFiles {
 public:
  static DurableFiles& Real();  // Thread-safe.
  virtual ~DurableFiles() = default;

  // A whole file. On the disk when this returns, but its name is only after SyncDirectory.
  virtual absl::Status Write(const std::filesystem::path& path, absl::Span<const absl::Span<const uint8_t>> parts);
  // Behind what the file holds. In the hands of the operating system when this returns.
  virtual absl::Status Append(const std::filesystem::path& path, absl::Span<const uint8_t> bytes);
  // In place of a file that has the name already.
  virtual absl::Status Rename(const std::filesystem::path& from, const std::filesystem::path& to);
  // One that is not there is removed.
  virtual absl::Status Remove(const std::filesystem::path& path);
  virtual absl::Status SyncDirectory(const std::filesystem::path& directory);

  // `path` with these parts, or as it was: written as "<path>.part" first.
  absl::Status Replace(const std::filesystem::path& path, absl::Span<const absl::Span<const uint8_t>> parts);
};

}  // namespace routing_replay

#endif  // PROTO_EXPORTED_DURABLE_FILES_H_
