// One connection: reads a request, asks the handler, writes its answer, and ends.
#ifndef SERVER_OPERATIONS_HTTP_HTTP_SESSION_H_
#define SERVER_OPERATIONS_HTTP_HTTP_SESSION_H_

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <memory>

#include "server/operations/http/http_port.h"

namespace routing_replay {

// What the sessions of a port share. Outlives them.
struct HttpSessions {
  HttpPortOptions options;
  HttpHandler handler;
  std::atomic<int> open{0};
};

// Lives until the connection ends. The socket's executor is a strand. `tls`: null of plaintext.
void StartHttpSession(boost::asio::ip::tcp::socket socket, std::shared_ptr<boost::asio::ssl::context> tls,
                      HttpSessions& sessions);

}  // namespace routing_replay

#endif  // SERVER_OPERATIONS_HTTP_HTTP_SESSION_H_
