// A stand-in for a Redis server that gives the answers that a test defines, valid or not.
#ifndef TESTS_SUPPORT_REDIS_SCRIPTED_SERVER_H_
#define TESTS_SUPPORT_REDIS_SCRIPTED_SERVER_H_

#include <sys/eventfd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/wire/mutex.h"
#include "server/store/redis/client/redis_connection.h"
#include "server/store/redis/client/redis_protocol.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)

// Listens on the loopback interface until destroyed. Thread-safe.
class ScriptedServer {
 public:
  using Command = std::vector<std::string>;
  struct Answer {
    std::string bytes;   // Sent unchanged.
    bool close = false;  // Whether to close the connection afterwards.
  };
  // Called for each command on the thread of its connection.
  using Handler = std::function<Answer(const Command&)>;

  explicit ScriptedServer(Handler handler);
  ~ScriptedServer();

  RedisAddress address() const { return {"127.0.0.1", port_}; }
  RedisEndpoint endpoint() const { return {.seeds = {address()}}; }
  // All commands so far, in the order of arrival.
  std::vector<Command> commands() const;
  int connections() const;
  void SetHandler(Handler handler);

 private:
  void Accept();
  void Serve(int fd);
  Answer Handle(Command command);

  int listener_ = -1;
  uint16_t port_ = 0;
  const int stop_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);  // Readable once the server stops.
  mutable Mutex mutex_;
  Handler handler_ ABSL_GUARDED_BY(mutex_);
  std::vector<Command> commands_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  std::thread accepting_;
};

// Handlers that answer HELLO and CLUSTER SLOTS like a single server, or like a cluster of these servers with equal
// shares of slots, and pass all other commands to `handler`.
ScriptedServer::Handler SingleServer(ScriptedServer::Handler handler);
ScriptedServer::Handler ClusterOf(std::vector<RedisAddress> masters, ScriptedServer::Handler handler);

// A bulk string in RESP.
std::string Bulk(const std::string& text);

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_REDIS_SCRIPTED_SERVER_H_
