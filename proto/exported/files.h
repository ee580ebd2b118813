// Whole files, in and out.
#ifndef PROTO_EXPORTED_FILES_H_
#define PROTO_EXPORTED_FILES_H_

#include <cstdint>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace routing_replay {
inline namespace wire {

// A file that was not there, by this very name: no link is followed. ALREADY_EXISTS if the name is taken; INTERNAL with
// what the system says, and then there is no such file.
absl::Status WriteNewFile(const std::filesystem::path& path, absl::Span<const absl::Span<const uint8_t>> parts);
// Why a directory that was named cannot be used: INVALID_ARGUMENT for a path that leads nowhere, PERMISSION_DENIED,
// INTERNAL for what the system is at fault for; with what it says.
absl::Status DirectoryError(const std::error_code& error, const std::filesystem::path& directory);
// NOT_FOUND if it cannot be opened, INTERNAL if it cannot be read or is no regular file.
absl::StatusOr<std::vector<uint8_t>> ReadFile(const std::filesystem::path& path);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_EXPORTED_FILES_H_
