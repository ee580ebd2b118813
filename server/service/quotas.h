// The limits of one run, as the handlers ask them. Refusals are counted.
#ifndef SERVER_SERVICE_QUOTAS_H_
#define SERVER_SERVICE_QUOTAS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/message/append_message.h"
#include "server/service/service_context.h"

namespace routing_replay::server {

// Whether the run may have what the store will charge for the request, payload or not, of which it has `promised`
// already. Commit it when it is stored. Errors as RunQuota::Admit; `promised` is given back then.
absl::StatusOr<RunQuota::Hold> AdmitAppend(ServiceContext& context, absl::string_view run, const AppendRequest& request,
                                           RunQuota::Hold promised);
// How much of `wanted` the run may be promised as credit; all of it, with an empty hold, where there is no limit.
// Errors as RunQuota::AdmitUpTo.
struct PromisedCredit {
  int64_t bytes = 0;
  RunQuota::Hold hold;
};
absl::StatusOr<PromisedCredit> AdmitCredit(ServiceContext& context, absl::string_view run, int64_t wanted);
// A stream of the run; null where there is no limit. Errors as RunQuota::Open.
absl::StatusOr<std::unique_ptr<RunQuota::Stream>> OpenStream(ServiceContext& context, absl::string_view run,
                                                             RunQuota::StreamKind kind);
// What to say, and count, of a call that took longer than --max-deadline.
absl::Status OverDeadline(ServiceContext& context);

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_QUOTAS_H_
