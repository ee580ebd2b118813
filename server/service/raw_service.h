// The service as gRPC sees it: Append, Put and Read come as bytes on completion queues, everything else as generated
// messages on gRPC's own threads.
#ifndef SERVER_SERVICE_RAW_SERVICE_H_
#define SERVER_SERVICE_RAW_SERVICE_H_

#include "routing_replay/v1/routing_replay.grpc.pb.h"
#include "server/service/control_service.h"

namespace routing_replay {

using RawService = v1::RoutingReplay::WithRawMethod_Append<
    v1::RoutingReplay::WithRawMethod_Put<v1::RoutingReplay::WithRawMethod_Read<ControlService>>>;

}  // namespace routing_replay

#endif  // SERVER_SERVICE_RAW_SERVICE_H_
