// A Redis or Valkey server or cluster. Commands go to the server that has their key, also while keys move or servers
// fail.
//
//   auto redis = RedisCluster::Connect(*ParseRedisEndpoint("redis://10.0.0.1:6379,10.0.0.2:6379"), {}, deadline);
//   std::vector<RedisRequest> requests = {{.command = RedisCommand({"GET", key}), .key = key}};
//   std::vector<RedisResult> results = (*redis)->Execute(requests, deadline);
//   if (results[0].reply.ok()) Use(std::move(results[0].reply->text));
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_CLUSTER_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_CLUSTER_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/wire/clock.h"
#include "server/store/redis/client/redis_protocol.h"

namespace routing_replay::server {

// CRC16 (XMODEM) modulo 16384 of the key, or of the part between its first { and the next } if that is not empty (Redis
// cluster specification, "Hash tags").
int RedisSlotOf(absl::string_view key);

// The nodes of a cluster and the slots of its masters. A value; const functions are thread-safe.
class SlotMap {
 public:
  SlotMap() { nodes_of_slots_.fill(kNobody); }
  // All slots at one server that is not a cluster.
  static SlotMap Single(RedisAddress address);
  // Parses the reply to CLUSTER SLOTS. A node without a host of its own ("" or nil) gets `asked_host`, the host that
  // sent the reply. DATA_LOSS: malformed, or a slot out of range.
  static absl::StatusOr<SlotMap> Parse(const RedisReply& reply, absl::string_view asked_host);

  // The master that serves `slot` (0 … 16383); nothing if there is none.
  std::optional<RedisAddress> MasterOf(int slot) const;
  // Every node of the reply, replicas too: servers that can be asked for a new map.
  const std::vector<RedisAddress>& nodes() const { return nodes_; }

 private:
  static constexpr uint16_t kNobody = 0xffff;
  uint16_t IndexOf(const RedisAddress& node);

  std::vector<RedisAddress> nodes_;
  std::array<uint16_t, kRedisSlots> nodes_of_slots_;
};

// A request may be sent twice: if the connection is lost before the answer, nobody knows whether it was executed. So it
// must be idempotent, and the answer of the second execution must be as useful as that of the first.
struct RedisRequest {
  RedisCommand command;
  // Any key of the command; for a command without a key, any text. It decides which server gets the request. All keys
  // of the request must have the same hash slot.
  std::string key;
  // Commands that are sent before `command` over the same connection and executed in this order; keys of the same slot.
  // If one of them fails, its error is the request's result, whatever the later commands did. So the last command must
  // check for itself that the earlier ones were executed. All are sent together, so the request
  // waits while their slot moves to another server.
  std::vector<RedisCommand> before = {};
};

// `reply` is never of type kError: that becomes a status (StatusOfRedisError). Errors inside an array stay in it.
//
//   UNAVAILABLE          a server was lost or out of service, and nothing better came before the deadline
//   DEADLINE_EXCEEDED    the deadline passed, and no server is known to be at fault
//   PERMISSION_DENIED    user, password or the user's rights
//   RESOURCE_EXHAUSTED   out of memory (kOverBudget, retry hint)
//   FAILED_PRECONDITION  any other error reply; a server that this client cannot work with
struct RedisResult {
  absl::StatusOr<RedisReply> reply = absl::UnavailableError("not sent");
  // True if the request may have been executed although its answer was not `reply`, the last one: an earlier answer was
  // lost, or `command` was executed after one of `before` had failed.
  bool repeated = false;
};

struct RedisClusterOptions {
  // Time limit for opening a connection and logging in. A server that does not answer delays the rest of a call for
  // this long.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(1);
  // A server that sends nothing for this long while a reply is due counts as lost.
  std::chrono::milliseconds response_timeout = std::chrono::seconds(10);
};

// Thread-safe.
class RedisCluster {
 public:
  // Asks one seed after the other for the slots, until one answers. Errors: those of RedisResult and NewRedisTls;
  // DATA_LOSS (malformed answer); FAILED_PRECONDITION also if one of several seeds is not a cluster and no other gives
  // slots (it is unclear which of them has the data), or if a server does not know HELLO (before Redis 6).
  static absl::StatusOr<std::unique_ptr<RedisCluster>> Connect(const RedisEndpoint& endpoint,
                                                               const RedisClusterOptions& options,
                                                               Clock::Time deadline);
  virtual ~RedisCluster() = default;

  // One result per request, in order; returns by about `deadline`. Requests for one server travel as one pipeline, and
  // the servers work at the same time. Follows redirections, and retries when servers are out of service or connections
  // are lost, with growing pauses, until the deadline.
  //
  // Requests of one call have no order, not even for the same key: a command that must come after another belongs in a
  // later call, or in the same request.
  virtual std::vector<RedisResult> Execute(absl::Span<const RedisRequest> requests, Clock::Time deadline) = 0;

  // True for a cluster, false for a single server.
  virtual bool clustered() const = 0;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_CLUSTER_H_
