// How the layout units refuse.
#ifndef TRAINER_PLUGIN_LAYOUT_INVALID_H_
#define TRAINER_PLUGIN_LAYOUT_INVALID_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::trainer {

// INVALID_ARGUMENT "field: what".
inline absl::Status Invalid(absl::string_view field, absl::string_view what, Reason reason = Reason::kField) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat(field, ": ", what),
                   ErrorDetail{.reason = reason, .field = std::string(field)});
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_INVALID_H_
