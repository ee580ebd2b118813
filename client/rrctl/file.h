// Files that commands are given.
#ifndef CLIENT_RRCTL_FILE_H_
#define CLIENT_RRCTL_FILE_H_

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace routing_replay {

// All bytes of the file, of `input` where the path is "-". NOT_FOUND; DATA_LOSS; INVALID_ARGUMENT for more than an
// append may have.
absl::StatusOr<std::vector<uint8_t>> ReadFile(const std::string& path, std::istream& input);

}  // namespace routing_replay

#endif  // CLIENT_RRCTL_FILE_H_
