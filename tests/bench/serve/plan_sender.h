// Sends appends that are made already, the way the client's appender does: its protocol and its stream.
#ifndef TESTS_BENCH_SERVE_PLAN_SENDER_H_
#define TESTS_BENCH_SERVE_PLAN_SENDER_H_

#include <grpcpp/completion_queue.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/appender/append_plan.h"
#include "client/appender/append_session.h"
#include "client/appender/append_stream.h"
#include "client/channel/link.h"

namespace routing_replay::bench {

// One stream, kept open: over the direct path where the link has one, else over gRPC. Not thread-safe; works on the
// calling thread.
class PlanSender {
 public:
  PlanSender(std::shared_ptr<client::Link> link, const std::string& run);
  ~PlanSender();

  // Returns when all are acknowledged; the first error of any. A broken stream is an error.
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
  Mutex sending_;                                 // Of direct_.
  std::unique_ptr<client::AppendStream> stream_;  // One of them.
  std::unique_ptr<client::DirectAppendStream> direct_;
};

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_SERVE_PLAN_SENDER_H_
