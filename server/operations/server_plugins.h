// Which of gRPC's optional services one server has. gRPC switches them on for all servers of a process at once; here
// each server is built with what it asks for.
#ifndef SERVER_OPERATIONS_SERVER_PLUGINS_H_
#define SERVER_OPERATIONS_SERVER_PLUGINS_H_

#include <grpcpp/server_builder.h>

#include <memory>

namespace routing_replay::server {

struct ServerPlugins {
  bool health = false;
  bool reflection = false;
  bool channelz = false;
};

// Every server of the process is built by one of these: none takes messages that gRPC compressed. Thread-safe.
std::unique_ptr<grpc::ServerBuilder> NewServerBuilder(const ServerPlugins& plugins);

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_SERVER_PLUGINS_H_
