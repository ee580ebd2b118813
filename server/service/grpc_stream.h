// The gRPC side of calls: the loop of a completion queue, the service registered with gRPC, the stream of a call, and
// unary calls (one request, one answer), which exist over gRPC only.
#ifndef SERVER_SERVICE_GRPC_STREAM_H_
#define SERVER_SERVICE_GRPC_STREAM_H_

#include <grpcpp/server_builder.h>
#include <grpcpp/support/async_stream.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "routing_replay/v1/routing_replay.grpc.pb.h"
#include "server/service/served_call.h"

namespace routing_replay::server {

// Returns a time of Clock::Real() in gRPC's type. Both count the machine's monotonic clock.
gpr_timespec GrpcTime(Clock::Time time);

class GrpcLoop final : public CallLoop {
 public:
  explicit GrpcLoop(std::unique_ptr<grpc::ServerCompletionQueue> queue) : queue_(std::move(queue)) {}
  // Call ShutdownAndJoin before.
  ~GrpcLoop() override = default;

  grpc::ServerCompletionQueue* queue() { return queue_.get(); }
  void Start();
  void Post(CallAlarm& alarm, CallEvent& event) override;
  void Drain() override;
  // Call it after Server::Shutdown has returned, which cancels all calls: the thread ends when the last call has ended.
  // Until then the calls' events begin more operations, such as the Finish after a failed Read, so the queue stays open
  // for them.
  void ShutdownAndJoin();

 private:
  void SetAlarm(CallAlarm& alarm, Clock::Time time, CallEvent& event) override;
  void CancelAlarm(CallAlarm& alarm) override { alarm.grpc_.Cancel(); }
  void Run();

  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::thread thread_;
  grpc::Alarm drain_alarm_;
  grpc::Alarm end_alarm_;
};

using RawStream = grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

// The service registered with gRPC. All methods are byte streams here, which makes no difference on the wire. So
// handlers learn of a call when its headers arrive, and decide when to receive the request. For an ordinary unary
// method, gRPC would report the call only when the whole request has arrived, and until then hold the received part or
// a waiting thread.
class RawService final : public v1::RoutingReplay::Service {
 public:
  RawService();

  // Asks gRPC for the next call of `method`, a method name of the service, as the generated RequestAppend does for
  // Append. `tag` arrives in `queue` with the call.
  void RequestCall(const char* method, grpc::ServerContext* call, RawStream* stream, grpc::CompletionQueue* call_queue,
                   grpc::ServerCompletionQueue* queue, void* tag);
};

class GrpcStream final : public CallStream {
 public:
  // The stream of the next call of `method`, one of the service's method names. All arguments must outlive the stream.
  GrpcStream(RawService& service, GrpcLoop& loop, const char* method)
      : service_(service), loop_(loop), method_(method) {}

  void Arrive(CallEvent& arrived, CallEvent& gone) override;
  std::unique_ptr<CallStream> Next() override { return std::make_unique<GrpcStream>(service_, loop_, method_); }
  Caller caller() const override;
  void Receive(int64_t most_payload, CallEvent& came) override { stream_.Read(&incoming_, came.Begin()); }
  absl::StatusOr<ReceivedMessage> Take() override;
  void Send(SentMessage message, CallEvent& sent) override;
  void Finish(const absl::Status& status, CallEvent& ended) override;
  void Cancel() override { context_.TryCancel(); }

  // The received message of a unary call, which uses this function instead of Take.
  grpc::ByteBuffer& incoming() { return incoming_; }
  // Sends the answer of a unary call and ends the call with OK, in one operation instead of Send and Finish.
  void SendLast(const grpc::ByteBuffer& message, CallEvent& ended) {
    stream_.WriteAndFinish(message, grpc::WriteOptions(), grpc::Status::OK, ended.Begin());
  }

 private:
  RawService& service_;
  GrpcLoop& loop_;
  const char* const method_;
  grpc::ServerContext context_;
  RawStream stream_{&context_};
  grpc::ByteBuffer incoming_;
};

struct UnaryCaller {
  const Caller& caller;
  const CallRecord& record;
  // Memory for the answer, from ServiceContext::control_memory: held until the answer is read.
  ByteReservation& memory;
  const std::atomic<bool>& gone;  // The client went away.
};

// Limit for a request without payload. protobuf parses it, and a malicious request could take thirty times its length
// in memory. The limit is about twice what 16,384 of the longest sample ids need.
inline constexpr int64_t kMaxControlBytes = 4 << 20;

struct UnaryMethod {
  const char* name;
  // Answers a request; consumes it. May wait for the store. Checks permissions; errors become the call's status:
  // INVALID_ARGUMENT if the bytes cannot be parsed.
  std::function<absl::StatusOr<grpc::ByteBuffer>(ServiceContext&, const UnaryCaller&, grpc::ByteBuffer& request)>
      answer;
  // A longer request is rejected (RESOURCE_EXHAUSTED, kLength) before it waits for a thread and is parsed.
  int64_t max_bytes = kMaxControlBytes;
};

// Put: one append in one call, counted against the budget when it arrives.
const UnaryMethod& PutMethod();
// Every method of the service except Append, Put and Read.
const std::vector<UnaryMethod>& ControlMethods();

// Serves the calls of the method. `workers` run its answer function; if null, the loop's thread does, which requires a
// store that never waits. The workers must be finished before the loop is shut down.
void Listen(ServiceContext& context, RawService& service, GrpcLoop& loop, const UnaryMethod& method,
            WorkerPool* workers);

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_GRPC_STREAM_H_
