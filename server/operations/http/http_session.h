// One connection: reads a request, asks the handler, writes its answer, and ends.
#ifndef SERVER_OPERATIONS_HTTP_HTTP_SESSION_H_
#define SERVER_OPERATIONS_HTTP_HTTP_SESSION_H_

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "proto/wire/mutex.h"
#include "server/operations/http/http_port.h"

namespace routing_replay::server {

// A connection that the port waits for: for its request, for it to take the answer, or for its end.
class WaitingSession {
 public:
  virtual ~WaitingSession() = default;
  virtual void Cut() = 0;  // From any thread.
};

// What the sessions of a port share. Outlives them. Thread-safe.
class HttpSessions {
 public:
  HttpSessions(HttpPortOptions port_options, HttpHandler port_handler)
      : options(std::move(port_options)), handler(std::move(port_handler)) {}

  // Whether one more may come in: where there are too many, for the one that the port has waited for the longest, which
  // is cut. A client that sends or takes nothing holds its place against nobody who asks.
  bool MakeRoom();
  // Until Forget with what this returns.
  uint64_t Await(std::weak_ptr<WaitingSession> session);
  void Forget(uint64_t waiting);

  const HttpPortOptions options;
  const HttpHandler handler;
  std::atomic<int> open{0};

 private:
  Mutex mutex_;
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::weak_ptr<WaitingSession>> waiting_ ABSL_GUARDED_BY(mutex_);  // The oldest first.
};

// Lives until the connection ends. The socket's executor is a strand. `tls`: null of plaintext.
void StartHttpSession(boost::asio::ip::tcp::socket socket, std::shared_ptr<boost::asio::ssl::context> tls,
                      HttpSessions& sessions);

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_HTTP_HTTP_SESSION_H_
