// Makes the Appender of client.h: its queue, its thread and its connection to the server.
#ifndef CLIENT_APPENDER_APPENDER_H_
#define CLIENT_APPENDER_APPENDER_H_

#include <memory>
#include <string>

#include "client/appender/append_plan.h"
#include "client/channel/link.h"
#include "routing_replay/client.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::client {

// The parts of a run that an appender needs.
struct AppenderRun {
  std::shared_ptr<Link> link;
  std::string name;
  std::shared_ptr<const Geometry> geometry;
  BlockOptions blocks;
  uint64_t first_sequence = 1, sequence_step = 1;
};

std::unique_ptr<PlanAppender> MakeAppender(AppenderRun run, AppenderOptions options);

}  // namespace routing_replay::client

#endif  // CLIENT_APPENDER_APPENDER_H_
