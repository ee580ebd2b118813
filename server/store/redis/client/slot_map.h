// Which node of a cluster serves which keys.
#ifndef SERVER_STORE_REDIS_CLIENT_SLOT_MAP_H_
#define SERVER_STORE_REDIS_CLIENT_SLOT_MAP_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/store/redis/client/redis_endpoint.h"
#include "server/store/redis/client/redis_reply.h"

namespace routing_replay::server {

constexpr int kRedisSlots = 16384;

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
  // gave the reply. DATA_LOSS: not such a reply, a slot out of range or given twice.
  static absl::StatusOr<SlotMap> Parse(const RedisReply& reply, absl::string_view asked_host);

  // The master that serves `slot` (0 … 16383); nothing if nobody does.
  std::optional<RedisAddress> MasterOf(int slot) const;
  // Every master that serves a slot, in order of address.
  std::vector<RedisAddress> Masters() const;
  // Every node that was named, replicas too: where to ask anew.
  const std::vector<RedisAddress>& nodes() const { return nodes_; }
  // Gives `slot` to `master`, known or not.
  void Assign(int slot, const RedisAddress& master);
  int unserved_slots() const;

 private:
  static constexpr uint16_t kNobody = 0xffff;
  uint16_t IndexOf(const RedisAddress& node);

  std::vector<RedisAddress> nodes_;
  std::array<uint16_t, kRedisSlots> nodes_of_slots_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_SLOT_MAP_H_
