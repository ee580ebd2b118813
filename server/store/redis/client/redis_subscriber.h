// Hears what is published on sharded channels (SSUBSCRIBE, Redis 7 or Valkey), wherever their slots live.
//
//   auto subscriber = RedisSubscriber::Start(*redis, [&](const RedisEvent& event) { ReadAgain(event.channel); });
//   subscriber->Subscribe("{run/sample}:c");
//   …  SPUBLISH {run/sample}:c x  anywhere  →  the callback
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_SUBSCRIBER_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_SUBSCRIBER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/store/redis/client/redis_cluster.h"

namespace routing_replay::server {

struct RedisEvent {
  std::string channel;
  // What was published. Nothing: messages may have been missed until now, so look for yourself. That comes after each
  // Subscribe once the channel is heard, and again when it is heard anew after a lost connection or a moved slot.
  std::optional<std::string> message;
};

// Thread-safe. One background thread, one connection per server with channels of ours.
class RedisSubscriber {
 public:
  // Called on the background thread without a lock held; must not block, may call Subscribe and Unsubscribe.
  using Callback = std::function<void(const RedisEvent&)>;

  // `cluster` must outlive the subscriber.
  static std::unique_ptr<RedisSubscriber> Start(RedisCluster& cluster, Callback callback);
  // No callback runs after it returned. Waits for a callback that runs, and where servers do not answer at most for the
  // cluster's connect_timeout.
  virtual ~RedisSubscriber() = default;

  // Returns at once. Everything published after the event without a message that follows is heard. Counted: as many
  // Unsubscribe as Subscribe calls end it.
  virtual void Subscribe(absl::string_view channel) = 0;
  // An event that is under way may still come.
  virtual void Unsubscribe(absl::string_view channel) = 0;
  // OK, or why channels are not heard at present (UNAVAILABLE, PERMISSION_DENIED, FAILED_PRECONDITION: no Redis 7).
  virtual absl::Status status() const = 0;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_SUBSCRIBER_H_
