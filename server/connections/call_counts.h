// How many calls a connection of gRPC's servers in this process has begun and done, as gRPC counts them where frames
// come in (channelz): also calls that no handler ever sees.
#ifndef SERVER_CONNECTIONS_CALL_COUNTS_H_
#define SERVER_CONNECTIONS_CALL_COUNTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "server/connections/connection_table.h"

namespace routing_replay::server {

// Not thread-safe. Servers must be built with GRPC_ARG_ENABLE_CHANNELZ, which is gRPC's default.
class CallCountReader {
 public:
  // Of the connection whose peer gRPC names so; nothing where gRPC knew of none when it was last asked for all.
  std::optional<CallCounts> Of(const std::string& peer);
  // From here on gRPC is asked for all again, once, where a peer is not known.
  void LookAgain() { listed_ = false; }
  // The name may be another connection's from here on.
  void Forget(const std::string& peer) { sockets_.erase(peer); }

 private:
  void FindSockets();
  void FindSocketsOf(int64_t server);

  std::map<std::string, int64_t> sockets_;
  bool listed_ = false;
};

}  // namespace routing_replay::server

#endif  // SERVER_CONNECTIONS_CALL_COUNTS_H_
