// The channels that one server is asked for, on one connection.
#ifndef SERVER_STORE_REDIS_CLIENT_SUBSCRIBER_LINK_H_
#define SERVER_STORE_REDIS_CLIENT_SUBSCRIBER_LINK_H_

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/store/redis/client/redis_connection.h"

namespace routing_replay::server {

// What a server has to say about a channel.
struct ChannelNews {
  enum class Kind {
    kHeard,    // The subscription took effect.
    kMessage,  // `text` was published.
    kRefused,  // The subscription did not come about; `text` is the error (MOVED …).
    kEnded,    // The server ended it: the slot went elsewhere.
  };
  Kind kind;
  std::string channel;
  std::string text;
};

// Not thread-safe.
class SubscriberLink {
 public:
  SubscriberLink(std::unique_ptr<RedisConnection> connection, Clock::Time now);

  void Subscribe(const std::string& channel);
  void Unsubscribe(const std::string& channel);
  // Subscribed to, or asked for.
  const std::set<std::string>& channels() const { return channels_; }

  // Moves what can be moved, and adds what was heard. UNAVAILABLE, DATA_LOSS: the link is over, none of its channels is
  // heard any longer. Sends a PING after `quiet` without a word, and is over after as long again.
  absl::Status Move(Clock::Time now, Clock::Duration quiet, std::vector<ChannelNews>& news);
  pollfd PollFor() const { return connection_->PollFor(); }
  const RedisAddress& server() const { return connection_->address(); }

 private:
  // Commands without an answer yet, in order; an error says no channel, so that its place among them must tell.
  struct Sent {
    RedisCommand command;
    std::string channel;
  };
  void Send(RedisCommand command, const std::string& channel);
  absl::Status Take(RedisReply reply, std::vector<ChannelNews>& news);
  absl::Status TakeError(const std::string& text, std::vector<ChannelNews>& news);
  bool IsAnswerTo(absl::string_view command, const std::string& channel) const;

  std::unique_ptr<RedisConnection> connection_;
  std::deque<Sent> sent_;
  std::set<std::string> channels_;
  Clock::Time last_word_;
  bool pinged_ = false;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_SUBSCRIBER_LINK_H_
