// A connection on which the test controls every byte.
#ifndef TESTS_SECURITY_RAW_SOCKET_H_
#define TESTS_SECURITY_RAW_SOCKET_H_

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"

namespace routing_replay::testing {

inline sockaddr_in LoopbackAddress(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// A port on which nothing listens.
inline std::string FreeAddress() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at = LoopbackAddress(0);
  socklen_t size = sizeof(at);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&at), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size), 0);
  close(fd);
  return absl::StrCat("127.0.0.1:", ntohs(at.sin_port));
}

// Connects to "127.0.0.1:PORT"; fails the test if it cannot. Never blocks.
class RawSocket {
 public:
  explicit RawSocket(const std::string& address) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const sockaddr_in to = LoopbackAddress(std::stoi(address.substr(address.rfind(':') + 1)));
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  }
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;
  ~RawSocket() { close(fd_); }

  int fd() const { return fd_; }
  // Returns the number of bytes sent.
  size_t Send(const std::string& bytes) const {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent < 0 ? 0 : static_cast<size_t>(sent);
  }
  // The bytes received so far.
  std::string Receive() {
    std::string all;
    char bytes[4096];
    ssize_t got;
    while ((got = recv(fd_, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) all.append(bytes, static_cast<size_t>(got));
    if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) closed_ = true;
    return all;
  }
  // Whether the server has closed the connection, as far as Receive has seen.
  bool closed() const { return closed_; }

 private:
  const int fd_;
  bool closed_ = false;
};

}  // namespace routing_replay::testing

#endif  // TESTS_SECURITY_RAW_SOCKET_H_
