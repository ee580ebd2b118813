// The file that tells where a server listens.
#ifndef SERVER_OPERATIONS_ENDPOINT_FILE_H_
#define SERVER_OPERATIONS_ENDPOINT_FILE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace routing_replay::server {

// There from Write to destruction: then it is removed, unless it is another one by now, as that of a server that was
// started in the place of this one.
class EndpointFile {
 public:
  // Writes `address` as a line. A reader sees the whole line or what was there before. INVALID_ARGUMENT if the file
  // cannot be written.
  static absl::StatusOr<std::unique_ptr<EndpointFile>> Write(const std::string& path, const std::string& address);
  virtual ~EndpointFile() = default;
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_ENDPOINT_FILE_H_
