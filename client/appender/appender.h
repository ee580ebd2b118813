// The Appender of client.h over a channel.
#ifndef CLIENT_APPENDER_APPENDER_H_
#define CLIENT_APPENDER_APPENDER_H_

#include <grpcpp/client_context.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/channel/link.h"
#include "routing_replay/client.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::client {

// What an appender must know of its run.
struct AppenderRun {
  std::shared_ptr<Link> link;
  std::string name;
  std::shared_ptr<const Geometry> geometry;
  int32_t block_rows = kDefaultBlockRows;
  Codec codec = Codec::kRaw;
  int64_t max_message_bytes = 0;  // That the server takes.
  int64_t max_payload_bytes = 0;
  uint64_t first_sequence = 1, sequence_step = 1;
  // One Stat call, cancelled through its context. Called from the appender's thread.
  std::function<absl::StatusOr<std::vector<SampleState>>(grpc::ClientContext&, Producer,
                                                         const std::vector<std::string>&)>
      stat;
};

// A PlanAppender.
std::unique_ptr<Appender> MakeAppender(AppenderRun run, AppenderOptions options);

}  // namespace routing_replay::client

#endif  // CLIENT_APPENDER_APPENDER_H_
