// What is said of a configuration that cannot be understood.
#ifndef PROTO_WIRE_MODEL_CONFIG_INVALID_CONFIG_H_
#define PROTO_WIRE_MODEL_CONFIG_INVALID_CONFIG_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {

inline absl::Status InvalidConfig(absl::string_view field, absl::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat(field, ": ", what),
                   {.reason = Reason::kField, .field = std::string(field)});
}

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_MODEL_CONFIG_INVALID_CONFIG_H_
