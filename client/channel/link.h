// The channel to an endpoint, which may come to name another server.
#ifndef CLIENT_CHANNEL_LINK_H_
#define CLIENT_CHANNEL_LINK_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/mutex.h"

namespace routing_replay {

// Thread-safe.
class Link {
 public:
  // The endpoint as ResolveEndpoint takes it, with its waiting and its errors. Does not wait for the server.
  static absl::StatusOr<std::shared_ptr<Link>> Open(absl::string_view endpoint, bool use_http_proxy,
                                                    std::chrono::milliseconds timeout);

  // To where the endpoint led when it was last looked at. Calls that are made on it stay on it.
  std::shared_ptr<grpc::Channel> channel() const;
  // Reads the file of a "file:PATH" again: a server that was started anew may have another port. Where nothing is in it
  // (no server is there) or nothing new, the channel stays.
  void LookAgain();
  // LookAgain after a call that found no server.
  void OnEnd(const absl::Status& status);

 private:
  Link(std::string endpoint, std::string target, bool use_http_proxy);

  const std::string endpoint_;
  const bool use_http_proxy_;
  mutable Mutex mutex_;
  std::string target_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay

#endif  // CLIENT_CHANNEL_LINK_H_
