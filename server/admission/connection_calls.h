// How many calls one connection may have open, whatever its peer makes of the limit that HTTP/2 tells it: gRPC holds
// only those to that who acknowledge it.
#ifndef SERVER_ADMISSION_CONNECTION_CALLS_H_
#define SERVER_ADMISSION_CONNECTION_CALLS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/mutex.h"

namespace routing_replay::server {

inline constexpr char kMaxStreams[] = "max-streams";

// Thread-safe.
class ConnectionCalls {
 public:
  // `max_streams`: that every peer is told.
  explicit ConnectionCalls(int64_t max_streams) : max_streams_(max_streams) {}

  // A call of the connection, until it is destroyed; before what it is counted by is.
  class Place {
   public:
    Place(ConnectionCalls& calls, std::string peer) : calls_(calls), peer_(std::move(peer)) {}
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() { calls_.Leave(peer_); }

   private:
    ConnectionCalls& calls_;
    const std::string peer_;
  };
  // `peer`: the connection as gRPC names it. Null for a Unix socket, whose peers share a name.
  // RESOURCE_EXHAUSTED (kOverBudget, field max-streams) where there are twice as many as allowed: who keeps to the
  // limit may begin a call before it is known here that another one has ended.
  absl::StatusOr<std::unique_ptr<Place>> Enter(absl::string_view peer);

 private:
  void Leave(const std::string& peer);

  const int64_t max_streams_;
  Mutex mutex_;
  std::map<std::string, int64_t, std::less<>> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_ADMISSION_CONNECTION_CALLS_H_
