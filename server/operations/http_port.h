// A small HTTP/1.1 server, plaintext or with TLS, for one handler: a request per connection, everything that a client
// can make large or slow is bounded, and no file is ever served.
#ifndef SERVER_OPERATIONS_HTTP_PORT_H_
#define SERVER_OPERATIONS_HTTP_PORT_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/security/served_tls.h"

namespace routing_replay::server {

struct HttpRequest {
  std::string method;  // "GET", …
  std::string path;    // As sent: nothing is decoded, nothing is a file.
  std::string query;   // What comes after '?'.
  std::string authorization;
  std::string content_type;
  std::string origin;      // Of the page for which a browser asks; others send none.
  std::string host;        // As the client calls the server, with the port; empty where it does not say.
  std::string peer;        // Its address and port.
  bool from_here = false;  // The peer's address is a loopback one.
  std::string body;
};

struct HttpResponse {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// Called by several threads at once, which it may hold up. Does not throw.
using HttpHandler = std::function<HttpResponse(const HttpRequest&)>;

struct HttpPortOptions {
  // host:port or [v6]:port; port 0: any free one. "[::]" is every address of the machine, also where it has no IPv6.
  std::string address;
  int threads = 4;  // That call the handler. Clients that are slow hold none.
  size_t max_header_bytes = 16 << 10;
  size_t max_body_bytes = 4 << 10;
  // Of a connection that is slow to send its request or to take the answer.
  std::chrono::milliseconds timeout = std::chrono::seconds(10);
  int max_connections = 128;  // Further ones take the place of the one that has kept the port waiting the longest.
  // HTTPS with what is served, and nothing else; clients are not asked for certificates. Null: plaintext. Outlives the
  // port.
  const ServedTls* tls = nullptr;
};

class HttpPort {
 public:
  // Listens when it returns. UNAVAILABLE naming the address, or the settings of TLS, if they cannot be used.
  static absl::StatusOr<std::unique_ptr<HttpPort>> Start(const HttpPortOptions& options, HttpHandler handler);
  // Waits for handlers that run; connections are cut. The handler is not called afterwards.
  virtual ~HttpPort() = default;

  // With the port that was chosen.
  virtual const std::string& address() const = 0;
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_HTTP_PORT_H_
