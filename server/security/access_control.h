// Who may do what: bearer tokens against the token file, checked for every call and every message.
//
// Nothing depends on the connection: it may carry calls of several tokens, and outlives each of them.
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

// Which scope each call needs: the one table that the handlers and SECURITY.md share.
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
};

struct CallRule {
  absl::string_view call;  // For people: the call, and which use of it.
  Rpc rpc;
  ScopeSet any_of;  // One of them is needed, on the run that the call names.
};

// In the order of Rpc.
absl::Span<const CallRule> CallRules();
const CallRule& RuleOf(Rpc rpc);

// What the bearer of one token may do, as the token file was when it was asked. Immutable.
class Permissions {
 public:
  // Everything.
  Permissions() = default;

  // OK if the token has one of `any_of` on the run. NOT_FOUND, exactly as for a run that is not there, if it covers no
  // such run; PERMISSION_DENIED (field authorization) if it covers the run, but not so. The name of the run is all that
  // is looked at.
  absl::Status Check(ScopeSet any_of, absl::string_view run) const;
  // OK if the token has one of `any_of` on any run. PERMISSION_DENIED (field authorization).
  absl::Status CheckAnywhere(ScopeSet any_of) const;
  // The entry whose max_runs is to be kept to when a run of that name is made, of those that allow it the one with the
  // most; null where one of them has none. Lives as long as this.
  const TokenGrant* LimitOnRuns(ScopeSet any_of, absl::string_view run) const;
  // Whether there is such a run, as far as the bearer is to know.
  bool Sees(absl::string_view run) const;

 private:
  friend class AccessControl;
  bool all_ = true;
  std::shared_ptr<const std::vector<TokenGrant>> file_;  // Keeps …
  std::vector<const TokenGrant*> grants_;                // … the token's entries in it.
};

// The token of an authorization header, "Bearer TOKEN", however the scheme is spelled; empty where the header is not
// of that form.
absl::string_view TokenOf(absl::string_view authorization);

// Thread-safe.
class AccessControl {
 public:
  // Allows everything.
  AccessControl() = default;
  // Of the tokens in a file; the file is looked at again for every check, so that a token that was taken out fails on
  // the next one. `reloaded` gets what became of each change: OK, or why the tokens stay as they were, as for a file
  // that got broken, or is gone; it is not called by two threads at once. A file that is broken now is an error;
  // one that was written to a moment ago is read until it rests, for half a second at most. `clock` must outlive this.
  static absl::StatusOr<std::unique_ptr<AccessControl>> Create(const std::string& token_file, const Clock& clock,
                                                               std::function<void(const absl::Status&)> reloaded);

  // `authorization` is the header of that name: "Bearer TOKEN". UNAUTHENTICATED (field authorization) where there is
  // none, or one that is unknown or expired.
  absl::StatusOr<Permissions> Identify(absl::string_view authorization) const;
  // The name of the token in its entry, the first where it has several, also where it has expired; empty where it is
  // not known here.
  std::string NameOf(absl::string_view authorization) const;
  // Identify, then Permissions::Check.
  absl::Status Check(absl::string_view authorization, ScopeSet any_of, absl::string_view run) const;

 private:
  using Grants = std::shared_ptr<const std::vector<TokenGrant>>;

  Grants Present() const;
  // Whether the file was read again.
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
