// The file that tells where a server listens.
#ifndef SERVER_OPERATIONS_ENDPOINT_FILE_H_
#define SERVER_OPERATIONS_ENDPOINT_FILE_H_

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace routing_replay::server {

// There from Write to destruction: then it is removed, unless it is another one by now, as that of a server that was
// started in the place of this one.
class EndpointFile {
 public:
  // Writes `address` as a line. A reader sees the whole line or what was there before. INVALID_ARGUMENT if the file
  // cannot be written.
  static absl::StatusOr<std::unique_ptr<EndpointFile>> Write(const std::string& path, const std::string& address);
  ~EndpointFile();

 private:
  // What tells a file from others, whatever it is called; nothing if there is no file.
  using Identity = std::optional<std::pair<dev_t, ino_t>>;
  static Identity IdentityOf(const std::string& path);
  EndpointFile(const std::string& path, const std::string& content, Identity identity)
      : path_(path), content_(content), identity_(identity) {}

  const std::string path_;
  const std::string content_;
  const Identity identity_;
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_ENDPOINT_FILE_H_
