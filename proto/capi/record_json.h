// What a read says of a sample, as the C APIs tell it.
#ifndef PROTO_CAPI_RECORD_JSON_H_
#define PROTO_CAPI_RECORD_JSON_H_

#include <nlohmann/json.hpp>

#include "routing_replay/wire/read_request.h"

namespace routing_replay::capi {

// {"status": "OK", "message", "committed_rows", "revision", "content_id", "unrecorded": [[b, e]],
//  "weights": [[b, e, version, label]]}, and num_tokens where it is known.
nlohmann::json ToJson(const SampleRecord& record);

}  // namespace routing_replay::capi

#endif  // PROTO_CAPI_RECORD_JSON_H_
