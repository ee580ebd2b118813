#include "server/store/rocksdb/rocks_status.h"

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {

absl::Status FromRocks(const rocksdb::Status& status, absl::string_view what) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat(what, ": ", status.ToString());
  if (status.IsCorruption() || status.IsNotFound()) {
    return MakeError(absl::StatusCode::kDataLoss, message, {.reason = Reason::kChecksum});
  }
  if (status.IsNoSpace()) {
    return MakeError(absl::StatusCode::kResourceExhausted, absl::StrCat("the disk is full: ", message),
                     {.reason = Reason::kOverBudget});
  }
  return MakeError(absl::StatusCode::kUnavailable, message, {.reason = Reason::kUnspecified});
}

}  // namespace routing_replay::server
