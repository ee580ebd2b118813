// A request and its answer, as handlers see them.
#ifndef SERVER_OPERATIONS_HTTP_HTTP_MESSAGE_H_
#define SERVER_OPERATIONS_HTTP_HTTP_MESSAGE_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

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

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_HTTP_HTTP_MESSAGE_H_
