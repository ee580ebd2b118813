#include "server/store/redis/client/subscriber_link.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

constexpr absl::string_view kSubscribe = "SSUBSCRIBE";
constexpr absl::string_view kUnsubscribe = "SUNSUBSCRIBE";
constexpr absl::string_view kPing = "PING";

absl::Status Unexpected(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("not what Redis says to a subscriber: ", what));
}

}  // namespace

SubscriberLink::SubscriberLink(std::unique_ptr<RedisConnection> connection, Clock::Time now)
    : connection_(std::move(connection)), last_word_(now) {
  connection_->ExpectPushes();
}

void SubscriberLink::Send(RedisCommand command, const std::string& channel) {
  sent_.push_back({std::move(command), channel});
  connection_->Push(sent_.back().command);
}

void SubscriberLink::Subscribe(const std::string& channel) {
  if (channels_.insert(channel).second) Send(RedisCommand({kSubscribe, channel}), channel);
}

void SubscriberLink::Unsubscribe(const std::string& channel) {
  if (channels_.erase(channel) > 0) Send(RedisCommand({kUnsubscribe, channel}), channel);
}

absl::Status SubscriberLink::Move(Clock::Time now, Clock::Duration quiet, std::vector<ChannelNews>& news) {
  if (now - last_word_ >= quiet) {
    if (pinged_) return absl::UnavailableError(absl::StrCat(server().ToString(), ": a subscription fell silent"));
    pinged_ = true;
    last_word_ = now;
    Send(RedisCommand({kPing}), "");
  }
  std::vector<RedisReply> replies;
  absl::Status moved = connection_->Move(replies);
  if (!replies.empty()) {
    last_word_ = now;
    pinged_ = false;
  }
  for (RedisReply& reply : replies) {
    if (auto status = Take(std::move(reply), news); !status.ok()) return status;
  }
  return moved;
}

bool SubscriberLink::IsAnswerTo(absl::string_view command, const std::string& channel) const {
  return !sent_.empty() && sent_.front().command.argument(0) == command && sent_.front().channel == channel;
}

absl::Status SubscriberLink::TakeError(const std::string& text, std::vector<ChannelNews>& news) {
  if (sent_.empty()) return Unexpected("an error without a command");
  if (IsAnswerTo(kSubscribe, sent_.front().channel) && channels_.erase(sent_.front().channel) > 0) {
    news.push_back({ChannelNews::Kind::kRefused, sent_.front().channel, text});
  }
  sent_.pop_front();
  return absl::OkStatus();
}

absl::Status SubscriberLink::Take(RedisReply reply, std::vector<ChannelNews>& news) {
  if (reply.is_error()) return TakeError(reply.text, news);
  // A server without subscriptions answers a PING with a status, one with subscriptions with an array.
  const bool pong =
      reply.type == RedisReply::Type::kStatus || (!reply.elements.empty() && reply.elements[0].text == "pong");
  if (pong) {
    if (!IsAnswerTo(kPing, "")) return Unexpected("pong");
    sent_.pop_front();
    return absl::OkStatus();
  }
  if (reply.elements.size() != 3) return Unexpected(RedisTypeName(reply.type));
  const std::string& what = reply.elements[0].text;
  std::string& channel = reply.elements[1].text;
  if (what == "smessage") {
    news.push_back({ChannelNews::Kind::kMessage, std::move(channel), std::move(reply.elements[2].text)});
    return absl::OkStatus();
  }
  if (what == "ssubscribe") {
    if (!IsAnswerTo(kSubscribe, channel)) return Unexpected("a subscription that nobody asked for");
    sent_.pop_front();
    if (channels_.count(channel) > 0) news.push_back({ChannelNews::Kind::kHeard, std::move(channel), ""});
    return absl::OkStatus();
  }
  if (what != "sunsubscribe") return Unexpected("another kind of message");
  if (IsAnswerTo(kUnsubscribe, channel)) {
    sent_.pop_front();
  } else if (channels_.erase(channel) > 0) {
    news.push_back({ChannelNews::Kind::kEnded, std::move(channel), ""});
  }
  return absl::OkStatus();
}

}  // namespace routing_replay::server
