// The calls that carry no payload: generated messages in and out, on gRPC's own threads.
#ifndef SERVER_SERVICE_CONTROL_SERVICE_H_
#define SERVER_SERVICE_CONTROL_SERVICE_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "routing_replay/v1/routing_replay.grpc.pb.h"
#include "server/security/call_rules.h"

namespace routing_replay {

struct ServiceContext;

// Thread-safe. Bind must be called before the first call.
class ControlService : public v1::RoutingReplay::Service {
 public:
  ControlService();
  void Bind(ServiceContext& context) { context_ = &context; }

  grpc::Status OpenRun(grpc::ServerContext*, const v1::OpenRunRequest*, v1::OpenRunResponse*) override;
  grpc::Status Seal(grpc::ServerContext*, const v1::SealRequest*, v1::SampleState*) override;
  grpc::Status Truncate(grpc::ServerContext*, const v1::TruncateRequest*, v1::SampleState*) override;
  grpc::Status Stat(grpc::ServerContext*, const v1::StatRequest*, v1::StatResponse*) override;
  grpc::Status List(grpc::ServerContext*, const v1::ListRequest*, v1::ListResponse*) override;
  grpc::Status ExpertLoad(grpc::ServerContext*, const v1::ExpertLoadRequest*, v1::ExpertLoadResponse*) override;
  grpc::Status ListRuns(grpc::ServerContext*, const v1::ListRunsRequest*, v1::ListRunsResponse*) override;
  grpc::Status Release(grpc::ServerContext*, const v1::ReleaseRequest*, v1::ReleaseResponse*) override;
  grpc::Status ReleaseForCheckpoint(grpc::ServerContext*, const v1::ReleaseRequest*, v1::ReleaseResponse*) override;
  grpc::Status DropRun(grpc::ServerContext*, const v1::DropRunRequest*, v1::DropRunResponse*) override;
  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*, v1::ServerInfo*) override;

 private:
  // Lets requests of the call in only within limits, and from callers that are known.
  template <typename Request, typename Response>
  void Bound(const char* method,
             grpc::Status (ControlService::*handler)(grpc::ServerContext*, const Request*, Response*));
  grpc::Status Refused(const char* method, const grpc::ServerContext& call, const absl::Status& status);
  template <typename Do>
  grpc::Status Answer(absl::string_view method, grpc::ServerContext* call, const Do& answer);
  template <typename Request, typename Do>
  grpc::Status AnswerOnRun(absl::string_view method, Rpc rule, grpc::ServerContext* call, const Request& request,
                           const Do& answer);

  ServiceContext* context_ = nullptr;
};

}  // namespace routing_replay

#endif  // SERVER_SERVICE_CONTROL_SERVICE_H_
