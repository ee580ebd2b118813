// Sockets that listen where `--listen` says.
#ifndef SERVER_CONNECTIONS_LISTENING_SOCKET_H_
#define SERVER_CONNECTIONS_LISTENING_SOCKET_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace routing_replay::server {

// Closes them, and removes the path of a Unix socket.
class ListeningSocket {
 public:
  // host:port, [v6]:port or unix:PATH. A name listens on each of its addresses that this machine has; 0.0.0.0 and [::]
  // on all of the machine, IPv6 where there is any. A Unix socket takes the place of one that is there, and is closed
  // to others than the server's user and group. UNAVAILABLE: "cannot listen on ADDRESS: " and why.
  static absl::StatusOr<ListeningSocket> Open(const std::string& address);
  ListeningSocket(ListeningSocket&& other) noexcept;
  ListeningSocket& operator=(ListeningSocket&&) = delete;
  ~ListeningSocket();

  // One or more, which do not block.
  const std::vector<int>& fds() const { return fds_; }
  // With the port that was chosen where it was 0.
  const std::string& address() const { return address_; }

 private:
  ListeningSocket() = default;
  absl::Status OpenUnix(const std::string& path);
  absl::Status OpenTcp(const std::string& host, const std::string& port);

  std::vector<int> fds_;
  std::string address_;
  std::string path_;
};

}  // namespace routing_replay::server

#endif  // SERVER_CONNECTIONS_LISTENING_SOCKET_H_
