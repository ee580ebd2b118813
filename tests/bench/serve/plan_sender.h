// Sends appends that are made already, the way the client's appender does: its protocol and its stream.
#ifndef TESTS_BENCH_SERVE_PLAN_SENDER_H_
#define TESTS_BENCH_SERVE_PLAN_SENDER_H_

#include <grpcpp/channel.h>
#include <grpcpp/completion_queue.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/appender/append_plan.h"
#include "client/appender/append_session.h"
#include "client/appender/append_stream.h"

namespace routing_replay::bench {

// One stream, kept open. Not thread-safe; works on the calling thread.
class PlanSender {
 public:
  PlanSender(const std::shared_ptr<grpc::Channel>& channel, const std::string& run);
  ~PlanSender();

  // Returns when all are acknowledged; the first error of any. A broken stream is an error.
  absl::Status Send(std::vector<client::AppendPlan> plans);

 private:
  absl::Status Step();
  absl::Status OnEvent(client::AppendStream::Event event);

  const client::ServerConnection connection_;
  grpc::CompletionQueue events_;
  client::AppendSession session_;
  std::unique_ptr<client::AppendStream> stream_;
};

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_SERVE_PLAN_SENDER_H_
