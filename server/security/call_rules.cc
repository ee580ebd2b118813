#include "server/security/call_rules.h"

namespace routing_replay {
namespace {

// Who may put asks for the state of samples too: that is how a writer goes on after a broken stream.
constexpr ScopeSet kPutOrRead = Scope::kPut | Scope::kRead;

constexpr CallRule kRules[] = {
    {Rpc::kMakeRun, "OpenRun with a geometry", Scope::kPut},
    {Rpc::kJoinRun, "OpenRun without a geometry", kAnyScope},
    {Rpc::kResumeAt, "OpenRun with resume_at", Scope::kAdmin},
    {Rpc::kAppend, "Append", Scope::kPut},
    {Rpc::kPut, "Put", Scope::kPut},
    {Rpc::kSeal, "Seal", Scope::kPut},
    {Rpc::kTruncate, "Truncate", Scope::kPut},
    {Rpc::kRead, "Read", Scope::kRead},
    {Rpc::kStat, "Stat", kPutOrRead},
    {Rpc::kList, "List", Scope::kRead},
    {Rpc::kExpertLoad, "ExpertLoad", Scope::kRead},
    {Rpc::kRelease, "Release", Scope::kAdmin},
    {Rpc::kReleaseForCheckpoint, "ReleaseForCheckpoint", Scope::kAdmin},
    {Rpc::kDropRun, "DropRun", Scope::kAdmin},
    {Rpc::kListRuns, "ListRuns", kAnyScope},
    {Rpc::kGetServerInfo, "GetServerInfo", kAnyScope},
};

constexpr bool InOrder() {
  int next = 0;
  for (const CallRule& rule : kRules) {
    if (static_cast<int>(rule.rpc) != next++) return false;
  }
  return next == static_cast<int>(Rpc::kGetServerInfo) + 1;
}
static_assert(InOrder());

}  // namespace

absl::Span<const CallRule> CallRules() { return kRules; }

const CallRule& RuleOf(Rpc rpc) { return kRules[static_cast<int>(rpc)]; }

}  // namespace routing_replay
