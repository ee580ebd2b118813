// Which of an endpoint's servers a client talks to. Knows no gRPC.
//
// With a list, each client begins at a member of its own (by chance, so that many clients spread) and stays there: the
// server that took a sample's rows knows most of it. When that one is UNAVAILABLE, the client goes on to the next, and
// does not come back before that one fails as well.
#ifndef CLIENT_CHANNEL_SERVER_CHOICE_H_
#define CLIENT_CHANNEL_SERVER_CHOICE_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/channel/endpoint.h"
#include "proto/wire/mutex.h"

namespace routing_replay::client {

// Thread-safe.
class ServerChoice {
 public:
  // A number by chance, for `begin`.
  static uint64_t AnyBegin();

  // The endpoint as ResolveEndpoint takes it. `begin` says which member comes first, modulo their number.
  ServerChoice(std::string endpoint, uint64_t begin) : endpoint_(std::move(endpoint)), begin_(begin) {}

  // The present server. While that is not known it resolves the endpoint, with the errors of ResolveEndpoint and its
  // waiting, of this call alone.
  absl::StatusOr<ServerTarget> Wait(std::chrono::milliseconds timeout);
  // Whether there may be another server when the present one is away. False while nothing is known.
  bool HasOthers() const;
  // A call to `target` found no server: goes on to the next, unless another call has done so already. The file of a
  // "file:PATH" is read first.
  void OnUnavailable(absl::string_view target);
  // Reads that file again: a restarted server may have another port. Where nothing is in it (no server is
  // there) or nothing new, all stays.
  void LookAgain();

 private:
  void Take(std::vector<ServerTarget> targets) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string endpoint_;
  const uint64_t begin_;
  mutable Mutex mutex_;
  std::vector<ServerTarget> targets_ ABSL_GUARDED_BY(mutex_);  // Empty: not known yet.
  size_t at_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace routing_replay::client

#endif  // CLIENT_CHANNEL_SERVER_CHOICE_H_
