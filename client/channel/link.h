// The connection to the servers of an endpoint: a gRPC channel to the current one with its streaming calls, and the
// direct path.
#ifndef CLIENT_CHANNEL_LINK_H_
#define CLIENT_CHANNEL_LINK_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/call/fork_part.h"
#include "client/channel/client_security.h"
#include "client/channel/direct_path.h"
#include "client/channel/endpoint.h"
#include "proto/wire/mutex.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// A channel to `target` (from ServerTargets) over a connection of its own. Does not wait for the server. HTTP proxies
// of the environment are ignored.
std::shared_ptr<grpc::Channel> MakeChannel(const ServerTarget& target, const ChannelKeys& keys);

// Thread-safe. There is no channel during a fork; afterwards parent and child each make their own.
class Link final : private ForkPart {
 public:
  // Checks the endpoint, which must not be empty, and the settings; fails with the errors of ResolveEndpoint and
  // ClientSecurity. Does not wait: the file of a "file:PATH" may be written later. `timeout` is used by Connect.
  static absl::StatusOr<std::shared_ptr<Link>> Open(absl::string_view endpoint, const SecuritySettings& security,
                                                    std::chrono::milliseconds timeout);

  // Returns the connection for one call to the current server; the call stays with it. DEADLINE_EXCEEDED if the
  // file of a "file:PATH" stays empty for the `timeout` of Open. Can also fail with the errors of ClientSecurity.
  absl::StatusOr<ServerConnection> Connect();
  // Begins a call of `method` over the direct path to the server of `connection`; null: make the call over gRPC. See
  // DirectPath::Begin.
  std::unique_ptr<DirectConnection> BeginDirect(const ServerConnection& connection, const std::string& method,
                                                Clock::Time deadline);
  // See DirectPath::Look.
  absl::StatusOr<std::string> LookForDirect(const ServerConnection& connection);
  // Counts, for each transport, the calls for which BeginDirect was called.
  ClientMetrics metrics() const;
  // Reports that a call over the direct path ended with `status`.
  void EndDirect(const ServerConnection& connection, std::unique_ptr<DirectConnection> direct,
                 const absl::Status& status);
  // See ServerChoice.
  bool HasOthers() const { return choice_.HasOthers(); }
  void LookAgain();
  // Reports the end of a call on `connection`. After UNAVAILABLE, the next calls go to another server, if there is one,
  // or use changed certificates. Returns ClientSecurity::Judge of `status`.
  absl::Status OnEnd(const ServerConnection& connection, const absl::Status& status);

 private:
  Link(std::string endpoint, std::shared_ptr<const ClientSecurity> security, std::chrono::milliseconds timeout)
      : timeout_(timeout), security_(std::move(security)), choice_(std::move(endpoint), std::random_device()()) {}
  void Rest() override;
  // Makes a channel to the current server, if the server or the certificates have changed.
  void Follow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<const ClientSecurity> security_;
  ServerChoice choice_;
  DirectPath direct_;
  mutable Mutex mutex_;
  ClientMetrics metrics_ ABSL_GUARDED_BY(mutex_);
  ServerTarget target_ ABSL_GUARDED_BY(mutex_);
  ChannelKeys keys_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<DirectTls> direct_tls_ ABSL_GUARDED_BY(mutex_);  // Null: no encryption.
  // The channel to target_ with keys_, or the error; null: not made yet.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

// One streaming call over gRPC: raw messages both ways, on a completion queue. Not thread-safe: for the one thread that
// polls the queue. Between construction and the event with `end`, the queue returns events with this class's tags; pass
// each to OnEvent. The object may be destroyed only after that event.
class RawStream {
 public:
  struct Event {
    std::optional<grpc::ByteBuffer> message;
    std::optional<absl::Status> end;  // The call's status.
  };

  // `method`: "/package.Service/Method".
  RawStream(const ServerConnection& connection, const char* method, grpc::CompletionQueue& queue,
            std::optional<Clock::Time> deadline = std::nullopt);

  Event OnEvent(void* tag, bool ok);
  bool CanWrite() const { return receiving_ && !writing_ && !broken_; }
  // Sends a message: `header`, then `payload`, whose bytes `owner` keeps alive. `last`: no other message follows.
  // Requires CanWrite().
  void Write(std::string header, absl::Span<const absl::Span<const uint8_t>> payload = {},
             const std::shared_ptr<const void>& owner = nullptr, bool last = false);
  // Ends the call soon, whatever it is doing. May be called from any thread.
  void Cancel() { context_.TryCancel(); }

 private:
  enum Tag : intptr_t { kStarted = 1, kWritten, kReceived, kEnded };

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  grpc::ByteBuffer incoming_;
  grpc::Status status_;
  bool receiving_ = false;  // From the start of the call until nothing more arrives.
  bool writing_ = false;
  bool broken_ = false;  // A write failed.
};

}  // namespace routing_replay::client

#endif  // CLIENT_CHANNEL_LINK_H_
