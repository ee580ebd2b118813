// How long a peer may be silent on a connection of gRPC before it is cut off.
#ifndef SERVER_OPERATIONS_PEER_LIMITS_H_
#define SERVER_OPERATIONS_PEER_LIMITS_H_

#include <grpcpp/server_builder.h>

#include <chrono>

namespace routing_replay::server {

// Of every connection of the server that is built: a handshake ends within 20 s, and a peer that is silent for 60 s
// answers a ping within 20 s; each sooner where `patience` is less, but not below 1 s. Clients may ping every 10 s.
void SetPeerLimits(std::chrono::milliseconds patience, grpc::ServerBuilder& builder);

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_PEER_LIMITS_H_
