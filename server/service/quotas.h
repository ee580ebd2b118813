// The limits of one run, as the handlers ask them. Refusals are counted.
#ifndef SERVER_SERVICE_QUOTAS_H_
#define SERVER_SERVICE_QUOTAS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/message/append_message.h"
#include "server/service/service_context.h"

namespace routing_replay {

// Whether the run may have what the request brings. Errors as RunQuota::Admit.
absl::Status AdmitBytes(ServiceContext& context, absl::string_view run, const AppendRequest& request);
// A stream of the run; null where there is no limit. Errors as RunQuota::Open.
absl::StatusOr<std::unique_ptr<RunQuota::Stream>> OpenStream(ServiceContext& context, absl::string_view run);
// What to say, and count, of a call that took longer than --max-deadline.
absl::Status OverDeadline(ServiceContext& context);

}  // namespace routing_replay

#endif  // SERVER_SERVICE_QUOTAS_H_
