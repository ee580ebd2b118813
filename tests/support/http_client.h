// The part of an HTTP client that tests of servers on this machine need.
#ifndef TESTS_SUPPORT_HTTP_CLIENT_H_
#define TESTS_SUPPORT_HTTP_CLIENT_H_

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace routing_replay::testing {

// A connection to "127.0.0.1:PORT" that sends arbitrary bytes. If it cannot connect, it receives nothing.
class HttpConnection {
 public:
  explicit HttpConnection(const std::string& address) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + address.rfind(':') + 1)));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~HttpConnection() { close(socket_); }
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  void Send(const std::string& bytes) const {
    if (connected_) send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Receives until the peer closes.
  std::string ReceiveAll() const {
    std::string all;
    char part[4096];
    for (ssize_t n; connected_ && (n = recv(socket_, part, sizeof(part), 0)) > 0;) {
      all.append(part, static_cast<size_t>(n));
    }
    return all;
  }

 private:
  const int socket_;
  bool connected_ = false;
};

struct HttpAnswer {
  int code = 0;  // 0: no answer.
  std::string headers;
  std::string body;
};

// `headers`: each ends with "\r\n".
inline HttpAnswer HttpGet(const std::string& address, const std::string& path, const std::string& headers = "") {
  const HttpConnection connection(address);
  connection.Send("GET " + path + " HTTP/1.1\r\nHost: " + address + "\r\n" + headers + "\r\n");
  const std::string all = connection.ReceiveAll();
  const size_t end = all.find("\r\n\r\n");
  if (end == std::string::npos || all.compare(0, 9, "HTTP/1.1 ") != 0) return {};
  return {std::atoi(all.c_str() + 9), all.substr(0, end + 2), all.substr(end + 4)};
}

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_HTTP_CLIENT_H_
