// From the name of a host to a connected socket.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_CONNECT_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_CONNECT_H_

#include <netdb.h>

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/store/redis/client/redis_endpoint.h"
#include "server/store/redis/client/redis_wait.h"

namespace routing_replay::server {

// UNAVAILABLE: the connection is over, or never was.
absl::Status RedisConnectionGone(absl::string_view what);

using RedisAddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Keeps the thread for as long as the system's resolver takes. UNAVAILABLE.
absl::StatusOr<RedisAddressList> ResolveRedisAddress(const RedisAddress& address);

// A connected, non-blocking socket, which is the caller's to close. The addresses are tried one after the other, each
// for its share of the time that is left: one that says nothing leaves some to those behind it. UNAVAILABLE: the last
// one refuses; DEADLINE_EXCEEDED, CANCELLED.
absl::StatusOr<int> ConnectInTurn(const addrinfo* first, const RedisWait& wait);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_CONNECT_H_
