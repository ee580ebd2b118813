#include "server/store/store_errors.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {

absl::Status NoRunError(absl::string_view run) {
  return MakeError(absl::StatusCode::kNotFound, absl::StrCat("there is no run \"", run, "\""),
                   {.reason = Reason::kNoRun, .field = "run"});
}

absl::Status NoSampleError(absl::string_view sample) {
  return MakeError(absl::StatusCode::kNotFound, absl::StrCat("there is no sample \"", sample, "\""),
                   {.reason = Reason::kNoSample, .sample = std::string(sample)});
}

absl::Status HandleCollisionError(absl::string_view sample, absl::string_view other) {
  return MakeError(absl::StatusCode::kAlreadyExists,
                   absl::StrCat("sample \"", sample, "\" has the same handle as sample \"", other,
                                "\" of this run; rename one of them"),
                   {.reason = Reason::kHandleCollision, .sample = std::string(sample)});
}

}  // namespace routing_replay::server
