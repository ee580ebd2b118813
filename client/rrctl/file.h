// Files that commands read and write.
#ifndef CLIENT_RRCTL_FILE_H_
#define CLIENT_RRCTL_FILE_H_

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace routing_replay::client {

// All bytes of the file, of `input` where the path is "-". NOT_FOUND; DATA_LOSS; INVALID_ARGUMENT for more than an
// append may have.
absl::StatusOr<std::vector<uint8_t>> ReadFile(const std::string& path, std::istream& input);

// Writes the file, or nothing: a file of that name is replaced once the new one is whole. INVALID_ARGUMENT where it
// cannot be written, DATA_LOSS where the disk does not take it.
absl::Status WriteFile(const std::string& path, absl::string_view bytes);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_FILE_H_
