#include "proto/capi/error.h"

#include "proto/json/json_object.h"
#include "proto/json/status_json.h"

namespace routing_replay::capi {

ErrorObject::ErrorObject(absl::Status status) : status_(std::move(status)), json_(DumpJson(StatusToJson(status_))) {}

absl::Status Invalid(Reason reason, absl::string_view field, absl::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat(field, ": ", what),
                   {.reason = reason, .field = std::string(field)});
}

}  // namespace routing_replay::capi
