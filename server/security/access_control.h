// Decides who may do what: compares bearer tokens with the token file, for every call and every message.
//
// Permissions belong to calls, not to connections: a connection may carry calls with several tokens, and may outlive
// each token.
#ifndef SERVER_SECURITY_ACCESS_CONTROL_H_
#define SERVER_SECURITY_ACCESS_CONTROL_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"
#include "proto/wire/security.h"
#include "server/security/token_file.h"

namespace routing_replay::server {

// The kinds of calls. Their scopes are in one table (CallRules); a test checks that SECURITY.md shows the same.
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
  kDropRun,
  kListRuns,
  kGetServerInfo,
  kOpenDirect,
};

struct CallRule {
  absl::string_view call;  // For people, such as "OpenRun with a geometry".
  Rpc rpc;
  ScopeSet any_of;  // The caller needs one of these on the run that the call names; if none, on at least one.
};

// Returns the rules of all calls, in the order of the values of Rpc.
absl::Span<const CallRule> CallRules();
const CallRule& RuleOf(Rpc rpc);

// What the bearer of one token may do, according to the token file at the time of Identify. Immutable.
class Permissions {
 public:
  // Allows everything.
  Permissions() = default;

  // OK if the token has one of `any_of` on the run. NOT_FOUND, exactly as for a run that does not exist, if none of the
  // token's entries covers the run; PERMISSION_DENIED (field authorization) if some do, but without these scopes. Only
  // looks at the run's name.
  absl::Status Check(ScopeSet any_of, absl::string_view run) const;
  // OK if the token has one of `any_of` on at least one run; otherwise PERMISSION_DENIED (field authorization).
  absl::Status CheckAnywhere(ScopeSet any_of) const;
  // The entry whose max_runs limits whether the run may be created: of all entries with one of `any_of` on the run, the
  // one with the highest limit. Null if one of them has no limit, or if there is none. Lives as long as this object.
  const TokenGrant* LimitOnRuns(ScopeSet any_of, absl::string_view run) const;
  // True if the bearer may know that the run exists.
  bool Sees(absl::string_view run) const;

 private:
  friend class AccessControl;
  bool all_ = true;
  std::shared_ptr<const std::vector<TokenGrant>> file_;  // Keeps the token file's entries alive, …
  std::vector<const TokenGrant*> grants_;                // … of which these are the token's.
};

// The token of an authorization header "Bearer TOKEN", where "Bearer" may have any case. Empty if the header has
// another form, or the token has more than 4,096 bytes.
absl::string_view TokenOf(absl::string_view authorization);

// Thread-safe.
class AccessControl {
 public:
  // Allows everything.
  AccessControl() = default;
  // For the tokens in a file. Every check first looks whether the file has changed, so a removed token fails at the
  // next check. `reloaded` is called after each change, by one thread at a time: with OK, or with the reason why the
  // previous tokens stay valid, for example that the file is damaged or gone. Create fails if the file is damaged. A
  // file that is being written is read until it stops changing, for half a second at most. `clock` must outlive this.
  static absl::StatusOr<std::unique_ptr<AccessControl>> Create(const std::string& token_file, const Clock& clock,
                                                               std::function<void(const absl::Status&)> reloaded);

  // `authorization` is the header of that name: "Bearer TOKEN". UNAUTHENTICATED (field authorization) if it is missing,
  // unknown or expired.
  absl::StatusOr<Permissions> Identify(absl::string_view authorization) const;
  // The name in the token's entry (the first entry, if there are several), even if it has expired; empty if the token
  // is unknown.
  std::string NameOf(absl::string_view authorization) const;
  // Identify, then Permissions::Check.
  absl::Status Check(absl::string_view authorization, ScopeSet any_of, absl::string_view run) const;

 private:
  using Grants = std::shared_ptr<const std::vector<TokenGrant>>;

  Grants Present() const;
  // Reads the token file again if it may have changed. Returns true if it was read.
  absl::StatusOr<bool> Reload() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock* clock_ = nullptr;
  std::function<void(const absl::Status&)> reloaded_;
  bool open_ = true;
  mutable Mutex mutex_;
  mutable std::unique_ptr<ChangingFile> file_ ABSL_GUARDED_BY(mutex_);
  mutable Grants grants_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_SECURITY_ACCESS_CONTROL_H_
