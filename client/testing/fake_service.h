// A real gRPC server around ModelServer that misbehaves on request.
#ifndef CLIENT_TESTING_FAKE_SERVICE_H_
#define CLIENT_TESTING_FAKE_SERVICE_H_

#include <grpcpp/server.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "client/testing/model_server.h"
#include "proto/wire/mutex.h"
#include "routing_replay/v1/routing_replay.grpc.pb.h"

namespace routing_replay::testing {

// The server's reaction to a message.
enum class Do {
  kAnswer,
  kLoseMessage,  // The stream breaks before the server has processed the message.
  kLoseAnswer,   // The stream breaks after the server has processed the message.
  kReject,       // Rejects credit or the append with OVER_BUDGET.
  kHang,         // No answer until the call is cancelled.
};

// State that several servers may share.
struct FakeStore {
  Mutex mutex;
  ModelServer model ABSL_GUARDED_BY(mutex);
};

// Listens on a free port of the loopback interface. Thread-safe.
class FakeService final : public v1::RoutingReplay::Service {
 public:
  explicit FakeService(std::shared_ptr<FakeStore> store = std::make_shared<FakeStore>());
  ~FakeService() override;

  const std::string& endpoint() const { return endpoint_; }

  // Sets the function that decides what to do about every message of an Append stream and every Put. It is called under
  // a lock, for one message at a time.
  void OnAppend(std::function<Do(const AppendRequest&)> decide);
  // The next `count` calls of every unary method fail with UNAVAILABLE.
  void FailNext(int count);
  // Sets a function that is called with each message of a Read before the message is sent, and may change it. If the
  // function returns false, the stream hangs there until it is cancelled.
  void OnRead(std::function<bool(v1::ReadResponse&)> change);

  // The next `count` Reads break off after their first message.
  void BreakNextReads(int count);

  ModelSample Sample(const std::string& name);
  int Calls(const std::string& method);
  // The number of connections that have called OpenRun.
  size_t Connections();

  grpc::Status OpenRun(grpc::ServerContext*, const v1::OpenRunRequest*, v1::OpenRunResponse*) override;
  grpc::Status Append(grpc::ServerContext*, grpc::ServerReaderWriter<v1::AppendResponse, v1::AppendRequest>*) override;
  grpc::Status Put(grpc::ServerContext*, const v1::AppendRequest*, v1::AppendAck*) override;
  grpc::Status Truncate(grpc::ServerContext*, const v1::TruncateRequest*, v1::SampleState*) override;
  grpc::Status Read(grpc::ServerContext*, const v1::ReadRequest*, grpc::ServerWriter<v1::ReadResponse>*) override;
  grpc::Status Stat(grpc::ServerContext*, const v1::StatRequest*, v1::StatResponse*) override;
  grpc::Status List(grpc::ServerContext*, const v1::ListRequest*, v1::ListResponse*) override;
  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*, v1::ServerInfo*) override;
  grpc::Status Release(grpc::ServerContext*, const v1::ReleaseRequest*, v1::ReleaseResponse*) override;

 private:
  // OK, or the failure that FailNext asked for. Counts the call.
  grpc::Status Begin(const std::string& method);
  Do Decide(const AppendRequest& request);
  AppendAck Apply(const AppendRequest& request, Do action);
  v1::ReadResponse Answer(int index, const std::string& name);

  const std::shared_ptr<FakeStore> store_;
  Mutex mutex_;
  std::function<Do(const AppendRequest&)> decide_ ABSL_GUARDED_BY(mutex_);
  std::function<bool(v1::ReadResponse&)> change_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> calls_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> peers_ ABSL_GUARDED_BY(mutex_);
  int failures_ ABSL_GUARDED_BY(mutex_) = 0;
  int broken_reads_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string endpoint_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace routing_replay::testing

#endif  // CLIENT_TESTING_FAKE_SERVICE_H_
