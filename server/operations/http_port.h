// A small HTTP/1.1 server, plaintext or TLS, with one handler. It serves one request per connection and no files. Size
// and time of every client input are limited.
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
  std::string path;    // As sent, without the query; %-escapes are not decoded.
  std::string authorization;
  std::string content_type;
  std::string origin;      // Origin of the page on whose behalf a browser asks; other clients send none.
  std::string host;        // The Host header: how the client names the server, with the port; empty if absent.
  std::string peer;        // The client's address and port.
  bool from_here = false;  // The client's address is a loopback address.
  std::string body;
};

struct HttpResponse {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// Called by several threads at once; it may block them. Must not throw.
using HttpHandler = std::function<HttpResponse(const HttpRequest&)>;

struct HttpPortOptions {
  // host:port or [v6]:port; port 0: any free one. "[::]" is every address of the machine, also where it has no IPv6.
  std::string address;
  int threads = 4;  // Threads that call the handler. Slow clients hold no thread.
  size_t max_header_bytes = 16 << 10;
  size_t max_body_bytes = 4 << 10;
  // Limit for a connection to send its request, or to read the answer.
  std::chrono::milliseconds timeout = std::chrono::seconds(10);
  int max_connections = 128;  // Further connections are closed at once.
  // HTTPS only, with these certificates; clients are not asked for certificates. Null: plaintext. Must outlive the
  // port.
  const ServedTls* tls = nullptr;
};

class HttpPort {
 public:
  // The port listens when Start returns. UNAVAILABLE naming the address or TLS settings that cannot be used.
  static absl::StatusOr<std::unique_ptr<HttpPort>> Start(const HttpPortOptions& options, HttpHandler handler);
  // Waits for running handlers; cuts connections. The handler is not called afterwards.
  virtual ~HttpPort() = default;

  // The address, with the port that was chosen.
  virtual const std::string& address() const = 0;
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_HTTP_PORT_H_
