// Whose call it is, as its client says in metadata: what makes the lines of several programs' logs one story.
#ifndef SERVER_OPERATIONS_CALLS_CALL_IDENTITY_H_
#define SERVER_OPERATIONS_CALLS_CALL_IDENTITY_H_

#include <string>

#include "absl/strings/string_view.h"

namespace routing_replay::server {

inline constexpr char kRequestIdKey[] = "x-request-id";
inline constexpr char kTraceParentKey[] = "traceparent";

// `given` where it can be one ([A-Za-z0-9._:/-]{1,128}), otherwise a new one of 16 hexadecimal digits.
std::string RequestId(absl::string_view given);

// `given` where it is what W3C Trace Context, version 00, calls valid, otherwise nothing.
std::string TraceParent(absl::string_view given);

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_CALLS_CALL_IDENTITY_H_
