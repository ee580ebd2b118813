// Redis or Valkey, one server or a cluster: commands go to the server that has their key, whatever happens meanwhile.
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
#include "server/store/redis/client/redis_endpoint.h"
#include "server/store/redis/client/redis_protocol.h"

namespace routing_replay::server {

// CRC16 (XMODEM) of the key, or of what stands between its first { and the next } if that is not empty, modulo 16384
// (Redis cluster specification, "Hash tags").
int RedisSlotOf(absl::string_view key);

// The nodes of a cluster and the slots of its masters. A value; const functions are thread-safe.
class SlotMap {
 public:
  SlotMap() { nodes_of_slots_.fill(kNobody); }
  // All slots at one server that is no cluster.
  static SlotMap Single(RedisAddress address);
  // From the reply to CLUSTER SLOTS. A node without a host of its own ("" or nil) is at `asked_host`, the host that
  // gave the reply. DATA_LOSS: not such a reply, or a slot out of range.
  static absl::StatusOr<SlotMap> Parse(const RedisReply& reply, absl::string_view asked_host);

  // The master that serves `slot` (0 … 16383); nothing if nobody does.
  std::optional<RedisAddress> MasterOf(int slot) const;
  // Every master that serves a slot, in order of address.
  std::vector<RedisAddress> Masters() const;
  // Every node that was named, replicas too: where to ask again.
  const std::vector<RedisAddress>& nodes() const { return nodes_; }

 private:
  static constexpr uint16_t kNobody = 0xffff;
  uint16_t IndexOf(const RedisAddress& node);

  std::vector<RedisAddress> nodes_;
  std::array<uint16_t, kRedisSlots> nodes_of_slots_;
};

// Executing it twice must leave what executing it once does, and its second answer must do: it is sent again when its
// connection is lost before its answer.
struct RedisRequest {
  RedisCommand command;
  // Decides the server: any key of the command. All keys of one command must have the same hash slot.
  std::string key;
  // Sent in front of the command, over the same connection, and carried out in this order before it; keys of the same
  // slot. If one of them fails, that is the request's result, whatever the commands behind it did: let the last one
  // look for itself whether those before it were carried out. They are only ever sent together, so while their slot is
  // on its way to another server they wait.
  std::vector<RedisCommand> before = {};
};

// Never a reply of type kError: that is a status here (StatusOfRedisError). Errors inside an array stay in it.
//
//   UNAVAILABLE          a server was lost or out of service, and nothing better came before the deadline
//   DEADLINE_EXCEEDED    the deadline passed, and no server is known to be at fault
//   PERMISSION_DENIED    user, password or the user's rights
//   RESOURCE_EXHAUSTED   out of memory (kOverBudget, retry hint)
//   FAILED_PRECONDITION  any other error reply; a server whose settings rule this client out
struct RedisResult {
  absl::StatusOr<RedisReply> reply = absl::UnavailableError("not asked");
  // True: it was sent again although it may have been carried out before. The answer is to the last time.
  bool repeated = false;
};

struct RedisClusterOptions {
  // For a connection and its login. A server that does not answer at all holds up what a call has for the others for
  // as long.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(1);
  // A server that sends nothing for so long while an answer is due is taken for lost.
  std::chrono::milliseconds response_timeout = std::chrono::seconds(10);
};

// Thread-safe.
class RedisCluster {
 public:
  // Finds out whether the seeds are a cluster, and its slots, by asking each of them once. Errors: those of
  // RedisResult; FAILED_PRECONDITION too for several seeds of which one is no cluster (which of them would have the
  // data?), and for a server that does not speak HELLO (before Redis 6).
  static absl::StatusOr<std::unique_ptr<RedisCluster>> Connect(const RedisEndpoint& endpoint,
                                                               const RedisClusterOptions& options,
                                                               Clock::Time deadline);
  virtual ~RedisCluster() = default;

  // One result per request, in order; returns by about `deadline`. All that goes to one server travels as one pipeline,
  // and the servers work at the same time. Redirections, servers out of service and lost connections are seen to with
  // growing pauses until the deadline.
  //
  // There is no order among the requests of one call, not even of one key: what must come after something else goes
  // into a later call, or into the same request.
  virtual std::vector<RedisResult> Execute(absl::Span<const RedisRequest> requests, Clock::Time deadline) = 0;

  // The servers that hold keys now (masters), in order of address.
  virtual std::vector<RedisAddress> Masters() = 0;
  // Asks one server, without redirection: for commands without a key (PING, FLUSHALL). Once more if the connection is
  // lost.
  virtual RedisResult ExecuteAt(const RedisAddress& server, const RedisCommand& command, Clock::Time deadline) = 0;
  // Whether it is a cluster, or one server alone.
  virtual bool clustered() const = 0;
  // For good: calls that wait, and all that come later, end at once, UNAVAILABLE where nothing came before.
  virtual void Abandon() = 0;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_CLUSTER_H_
