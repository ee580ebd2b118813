#include "server/security/access_control.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/store_rules.h"

namespace routing_replay::server {
namespace {

// The scope put also allows Stat: a writer needs the state of its samples to continue after a broken stream.
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
    {"DropRun", Rpc::kDropRun, Scope::kAdmin},
    {"ListRuns", Rpc::kListRuns, kAnyScope},
    {"GetServerInfo", Rpc::kGetServerInfo, kAnyScope},
    {"OpenDirect", Rpc::kOpenDirect, kAnyScope},
};

constexpr bool InOrder() {
  int next = 0;
  for (const CallRule& rule : kRules) {
    if (static_cast<int>(rule.rpc) != next++) return false;
  }
  return next == static_cast<int>(Rpc::kOpenDirect) + 1;
}
static_assert(InOrder());

constexpr absl::string_view kScheme = "Bearer ";
// Longer tokens are rejected without hashing them. No real token is nearly this long.
constexpr size_t kMaxTokenBytes = 4096;

// While a file is written in place, its first part may be a valid list that grants more than the whole. So it is read
// until it stops changing, for half a second at most.
absl::StatusOr<std::optional<std::string>> LookUntilItRests(ChangingFile& file) {
  constexpr std::chrono::milliseconds kPoll(20);
  constexpr int kPolls = 25;
  auto text = file.Look();
  for (int i = 0; i < kPolls && text.ok() && *text; ++i) {
    std::this_thread::sleep_for(kPoll);
    auto again = file.Look();
    if (again.ok() && !*again) break;
    text = std::move(again);
  }
  return text;
}

absl::Status NoToken(absl::string_view why) {
  return MakeError(absl::StatusCode::kUnauthenticated, absl::StrCat("authorization: ", why),
                   {.field = "authorization"});
}

absl::Status NoScope(ScopeSet any_of, absl::string_view where) {
  std::vector<std::string> names;
  for (const ScopeName& scope : kScopeNames) {
    if (any_of.overlaps(scope.scope)) names.push_back(scope.name);
  }
  return MakeError(absl::StatusCode::kPermissionDenied,
                   absl::StrCat("authorization: the call needs the scope ", absl::StrJoin(names, " or "), where,
                                "; the token does not have it"),
                   {.field = "authorization"});
}

Sha256 HashOf(absl::string_view token) {
  Sha256 hash;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash.data());
  return hash;
}

}  // namespace

absl::Span<const CallRule> CallRules() { return kRules; }

const CallRule& RuleOf(Rpc rpc) { return kRules[static_cast<int>(rpc)]; }

absl::Status Permissions::Check(ScopeSet any_of, absl::string_view run) const {
  if (all_) return absl::OkStatus();
  bool seen = false;
  for (const TokenGrant* grant : grants_) {
    if (!grant->covers(run)) continue;
    if (grant->scopes.overlaps(any_of)) return absl::OkStatus();
    seen = true;
  }
  return seen ? NoScope(any_of, absl::StrCat(" on run \"", run, "\"")) : NoRunError(run);
}

const TokenGrant* Permissions::LimitOnRuns(ScopeSet any_of, absl::string_view run) const {
  const TokenGrant* most = nullptr;
  for (const TokenGrant* grant : grants_) {
    if (!grant->covers(run) || !grant->scopes.overlaps(any_of)) continue;
    if (!grant->max_runs) return nullptr;
    if (most == nullptr || *grant->max_runs > *most->max_runs) most = grant;
  }
  return most;
}

absl::Status Permissions::CheckAnywhere(ScopeSet any_of) const {
  const bool has = std::any_of(grants_.begin(), grants_.end(),
                               [&](const TokenGrant* grant) { return grant->scopes.overlaps(any_of); });
  return all_ || has ? absl::OkStatus() : NoScope(any_of, "");
}

bool Permissions::Sees(absl::string_view run) const {
  return all_ ||
         std::any_of(grants_.begin(), grants_.end(), [&](const TokenGrant* grant) { return grant->covers(run); });
}

absl::string_view TokenOf(absl::string_view authorization) {
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return "";
  const absl::string_view token = authorization.substr(kScheme.size());
  return token.size() > kMaxTokenBytes ? "" : token;
}

absl::StatusOr<std::unique_ptr<AccessControl>> AccessControl::Create(
    const std::string& token_file, const Clock& clock, std::function<void(const absl::Status&)> reloaded) {
  auto control = std::make_unique<AccessControl>();
  control->clock_ = &clock;
  control->reloaded_ = std::move(reloaded);
  control->open_ = false;
  MutexLock lock(control->mutex_);
  control->file_ = std::make_unique<ChangingFile>(token_file);
  if (const auto read = control->Reload(); !read.ok()) return read.status();
  return control;
}

absl::StatusOr<bool> AccessControl::Reload() const {
  RR_ASSIGN_OR_RETURN(const auto text, LookUntilItRests(*file_));
  if (!text) return false;
  auto grants = ParseTokenFile(*text);
  if (!grants.ok()) return absl::InvalidArgumentError(absl::StrCat(file_->path(), ": ", grants.status().message()));
  grants_ = std::make_shared<const std::vector<TokenGrant>>(*std::move(grants));
  return true;
}

AccessControl::Grants AccessControl::Present() const {
  MutexLock lock(mutex_);
  const auto changed = Reload();
  if (!changed.ok() || *changed) reloaded_(changed.status());
  return grants_;
}

std::string AccessControl::NameOf(absl::string_view authorization) const {
  const absl::string_view token = open_ ? "" : TokenOf(authorization);
  if (token.empty()) return "";
  const Sha256 hash = HashOf(token);
  for (const TokenGrant& grant : *Present()) {
    if (CRYPTO_memcmp(grant.sha256.data(), hash.data(), hash.size()) == 0) return grant.name;
  }
  return "";
}

absl::StatusOr<Permissions> AccessControl::Identify(absl::string_view authorization) const {
  Permissions permissions;
  if (open_) return permissions;
  permissions.all_ = false;
  if (authorization.empty()) return NoToken("missing; this server requires a token, as \"Bearer TOKEN\"");
  const absl::string_view token = TokenOf(authorization);
  if (token.empty()) return NoToken("must be \"Bearer TOKEN\"");
  const Sha256 hash = HashOf(token);
  const auto now = clock_->TimeOfDay();
  bool expired = false;
  // Compares every entry in full, so that the time taken reveals nothing about the entries.
  permissions.file_ = Present();
  for (const TokenGrant& grant : *permissions.file_) {
    if (CRYPTO_memcmp(grant.sha256.data(), hash.data(), hash.size()) != 0) continue;
    if (grant.expires && *grant.expires <= now) {
      expired = true;
    } else {
      permissions.grants_.push_back(&grant);
    }
  }
  if (!permissions.grants_.empty()) return permissions;
  return NoToken(expired ? "the token has expired" : "the token is unknown");
}

absl::Status AccessControl::Check(absl::string_view authorization, ScopeSet any_of, absl::string_view run) const {
  const auto permissions = Identify(authorization);
  return permissions.ok() ? permissions->Check(any_of, run) : permissions.status();
}

}  // namespace routing_replay::server
