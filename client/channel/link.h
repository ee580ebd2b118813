// Channels to the servers of an endpoint.
#ifndef CLIENT_CHANNEL_LINK_H_
#define CLIENT_CHANNEL_LINK_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/channel/server_choice.h"
#include "proto/wire/mutex.h"

namespace routing_replay {

// Thread-safe.
class Link {
 public:
  // The endpoint as ResolveEndpoint takes it, with its waiting and its errors. Does not wait for the server.
  static absl::StatusOr<std::shared_ptr<Link>> Open(absl::string_view endpoint, bool use_http_proxy,
                                                    std::chrono::milliseconds timeout);

  // To the present server. Calls that are made on it stay on it.
  std::shared_ptr<grpc::Channel> channel() const;
  // As those of ServerChoice.
  bool HasOthers() const { return choice_.HasOthers(); }
  void LookAgain();
  // The end of a call on `channel`: after UNAVAILABLE the next calls go to another server, if there is one.
  void OnEnd(const std::shared_ptr<grpc::Channel>& channel, const absl::Status& status);

 private:
  Link(std::string endpoint, bool use_http_proxy)
      : use_http_proxy_(use_http_proxy), choice_(std::move(endpoint), ServerChoice::AnyBegin()) {}
  // Makes the channel to the present server, if it is another one than before.
  void Follow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const bool use_http_proxy_;
  ServerChoice choice_;
  mutable Mutex mutex_;
  ServerTarget target_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mutex_);  // To target_.
};

}  // namespace routing_replay

#endif  // CLIENT_CHANNEL_LINK_H_
