// Unary RPCs with the client's deadline and retries. Cancelling this thread's call (client/call/cancellation.h) cancels
// the RPC.
#ifndef CLIENT_CALLER_H_
#define CLIENT_CALLER_H_

#include <grpcpp/client_context.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "client/call/retry.h"
#include "client/channel/link.h"
#include "proto/wire/message/grpc_bytes.h"
#include "routing_replay/v1/routing_replay.grpc.pb.h"

namespace routing_replay::client {

// The largest number of sample names in one request; their size is far below the limit of a message.
inline constexpr size_t kMaxNamesPerCall = 10000;

// Whether a call may be sent again if its answer may have been lost.
enum class Repeat {
  kAlways,  // Idempotent call: retried, on another server if there is one.
  // Not idempotent: waits for a connection, then is sent once. With several servers, first finds one that answers.
  kNever,
};

// Returns true if no server answered.
bool IsUnreachable(const absl::Status& status);

// Thread-safe.
class Caller {
 public:
  using Stub = v1::RoutingReplay::Stub;

  // `timeout` applies to calls that have no deadline of their own (CallScope). `is_one_of_several`: if the server did
  // not answer the last call, the next call tries it only briefly, so that a server that is down does not delay every
  // call to all servers.
  Caller(std::shared_ptr<Link> link, std::chrono::milliseconds timeout, bool is_one_of_several = false)
      : link_(std::move(link)), timeout_(timeout), is_one_of_several_(is_one_of_several) {}

  const std::shared_ptr<Link>& link() const { return link_; }
  // True if the server did not answer the last call; always false without is_one_of_several.
  bool is_gone() const { return is_gone_; }
  void set_gone(bool gone) const { is_gone_ = gone; }
  static constexpr std::chrono::seconds kBrief{1};

  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                const Request& request, Repeat repeat = Repeat::kAlways) const {
    Response response;
    const absl::Status status = Attempt(repeat, [&](const Channel& channel, grpc::ClientContext& context) {
      return FromGrpcStatus((NewStub(channel).get()->*method)(&context, request, &response));
    });
    if (!status.ok()) return status;
    return response;
  }

 private:
  using Channel = std::shared_ptr<grpc::Channel>;
  using OneCall = std::function<absl::Status(const Channel&, grpc::ClientContext&)>;

  static std::unique_ptr<Stub> NewStub(const Channel& channel) { return v1::RoutingReplay::NewStub(channel); }
  absl::Status Attempt(Repeat repeat, const OneCall& attempt) const;
  absl::Status AttemptBy(Clock::Time deadline, Repeat repeat, const OneCall& attempt) const;

  const std::shared_ptr<Link> link_;
  const std::chrono::milliseconds timeout_;
  const bool is_one_of_several_;
  mutable std::atomic<bool> is_gone_ = false;
};

}  // namespace routing_replay::client

#endif  // CLIENT_CALLER_H_
