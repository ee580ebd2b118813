#include "proto/capi/error.h"

#include "proto/json/json_object.h"
#include "proto/json/status_json.h"

namespace routing_replay::capi {

ErrorObject::ErrorObject(absl::Status status) : status_(std::move(status)), json_(DumpJson(StatusToJson(status_))) {}

}  // namespace routing_replay::capi
