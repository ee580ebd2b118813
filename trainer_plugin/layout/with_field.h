// Errors of one unit, told by another in its caller's words.
#ifndef TRAINER_PLUGIN_LAYOUT_WITH_FIELD_H_
#define TRAINER_PLUGIN_LAYOUT_WITH_FIELD_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::trainer {

// The status with its field, and the words that begin with it, under another name.
inline absl::Status WithField(const absl::Status& status, absl::string_view field) {
  auto detail = GetErrorDetail(status);
  if (!detail) return status;
  absl::string_view what = status.message();
  const bool named = absl::ConsumePrefix(&what, absl::StrCat(detail->field, ": "));
  detail->field = std::string(field);
  return MakeError(status.code(), named ? absl::StrCat(field, ": ", what) : std::string(what), *detail);
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_WITH_FIELD_H_
