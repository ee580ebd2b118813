// Sends prepared appends with the protocol and the stream of the client's appender.
#ifndef TESTS_BENCH_SERVE_PLAN_SENDER_H_
#define TESTS_BENCH_SERVE_PLAN_SENDER_H_

#include <grpcpp/completion_queue.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/appender/append_plan.h"
#include "client/appender/append_session.h"
#include "client/appender/direct_append_stream.h"
#include "client/channel/link.h"

namespace routing_replay::bench {

// One open stream: over the direct path if the link has one, otherwise over gRPC. Not thread-safe; all work is done on
// the calling thread.
class PlanSender {
 public:
  PlanSender(std::shared_ptr<client::Link> link, const std::string& run);
  ~PlanSender();

  // Returns when all appends are acknowledged, or with the first error. A broken stream is an error.
  absl::Status Send(std::vector<client::AppendPlan> plans);

 private:
  absl::Status Connect();
  absl::Status Step();
  absl::Status Wait(Clock::Time until);
  absl::Status OnMessage(const absl::StatusOr<ByteChain>& message);
  absl::Status OnEnd(const absl::Status& end);

  const std::shared_ptr<client::Link> link_;
  client::ServerConnection connection_;
  grpc::CompletionQueue events_;
  client::AppendSession session_;
  Mutex sending_;                              // Guards direct_.
  std::unique_ptr<client::RawStream> stream_;  // One of the two is set.
  std::unique_ptr<client::DirectAppendStream> direct_;
};

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_SERVE_PLAN_SENDER_H_
