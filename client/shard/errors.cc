#include "client/shard/errors.h"

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

bool IsNotFoundFor(const absl::Status& status, Reason reason) {
  const auto detail = GetErrorDetail(status);
  return absl::IsNotFound(status) && detail && detail->reason == reason;
}

}  // namespace

bool IsUnreachable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

bool IsNoRun(const absl::Status& status) { return IsNotFoundFor(status, Reason::kNoRun); }

bool IsNoSample(const absl::Status& status) { return IsNotFoundFor(status, Reason::kNoSample); }

absl::Status WithServer(const absl::Status& status, const std::string& endpoint) {
  if (status.ok()) return status;
  const std::string message = absl::StrCat("server ", endpoint, ": ", status.message());
  const auto detail = GetErrorDetail(status);
  return detail ? MakeError(status.code(), message, *detail) : absl::Status(status.code(), message);
}

}  // namespace routing_replay::client
