// Which scope each call needs: the one table that the handlers and SECURITY.md share.
#ifndef SERVER_SECURITY_CALL_RULES_H_
#define SERVER_SECURITY_CALL_RULES_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/security/scope.h"

namespace routing_replay::server {

enum class Rpc {
  kMakeRun,
  kJoinRun,
  kResumeAt,
  kAppend,
  kPut,
  kSeal,
  kTruncate,
  kRead,
  kStat,
  kList,
  kRelease,
  kReleaseForCheckpoint,
  kDropRun,
  kListRuns,
  kGetServerInfo,
};

struct CallRule {
  absl::string_view call;  // For people: the call, and which use of it.
  Rpc rpc;
  ScopeSet any_of;  // One of them is needed, on the run that the call names.
};

// In the order of Rpc.
absl::Span<const CallRule> CallRules();
const CallRule& RuleOf(Rpc rpc);

}  // namespace routing_replay::server

#endif  // SERVER_SECURITY_CALL_RULES_H_
