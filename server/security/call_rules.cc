#include "server/security/call_rules.h"

namespace routing_replay::server {
namespace {

// Who may put asks for the state of samples too: that is how a writer goes on after a broken stream.
constexpr ScopeSet kPutOrRead = Scope::kPut | Scope::kRead;

constexpr CallRule kRules[] = {
    {"OpenRun with a geometry", Rpc::kMakeRun, Scope::kPut},
    {"OpenRun without a geometry", Rpc::kJoinRun, kAnyScope},
    {"OpenRun with resume_at", Rpc::kResumeAt, Scope::kAdmin},
    {"Append", Rpc::kAppend, Scope::kPut},
    {"Put", Rpc::kPut, Scope::kPut},
    {"Seal", Rpc::kSeal, Scope::kPut},
    {"Truncate", Rpc::kTruncate, Scope::kPut},
    {"Read", Rpc::kRead, Scope::kRead},
    {"Stat", Rpc::kStat, kPutOrRead},
    {"List", Rpc::kList, Scope::kRead},
    {"Release", Rpc::kRelease, Scope::kAdmin},
    {"ReleaseForCheckpoint", Rpc::kReleaseForCheckpoint, Scope::kAdmin},
    {"DropRun", Rpc::kDropRun, Scope::kAdmin},
    {"ListRuns", Rpc::kListRuns, kAnyScope},
    {"GetServerInfo", Rpc::kGetServerInfo, kAnyScope},
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

}  // namespace routing_replay::server
