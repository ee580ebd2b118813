// The token file: who may do what, as YAML or JSON. It contains only hashes, so reading it gives no access.
//
//   - name: rollout            # For people and logs.
//     sha256: 9f86d08188…      # Of the token, in hex. `rrctl token` makes a token and its entry.
//     runs: [grpo-]            # Prefixes of run names; "" is every run.
//     scopes: [put, read]      # Any of put, read, admin.
//     max_runs: 20             # Optional: once so many runs with these prefixes exist, the token can create no more.
//     expires: 2027-01-31      # Optional: the start of that day in UTC, or a time with its zone (RFC 3339).
//
// A token that has several entries may do what any of them allows.
#ifndef SERVER_SECURITY_TOKEN_FILE_H_
#define SERVER_SECURITY_TOKEN_FILE_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace routing_replay::server {

// What a token may do.
enum class Scope : uint8_t { kPut = 1, kRead = 2, kAdmin = 4 };

// A set of scopes. If a call is allowed for a set, the token needs only one scope of it.
class ScopeSet {
 public:
  constexpr ScopeSet() = default;
  constexpr ScopeSet(Scope scope) : bits_(static_cast<uint8_t>(scope)) {}  // NOLINT: a scope is a set of one.

  constexpr bool overlaps(ScopeSet other) const { return (bits_ & other.bits_) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  friend constexpr ScopeSet operator|(ScopeSet a, ScopeSet b) { return ScopeSet(a.bits_ | b.bits_); }
  friend constexpr bool operator==(ScopeSet, ScopeSet) = default;

 private:
  explicit constexpr ScopeSet(int bits) : bits_(static_cast<uint8_t>(bits)) {}
  uint8_t bits_ = 0;
};
constexpr ScopeSet operator|(Scope a, Scope b) { return ScopeSet(a) | ScopeSet(b); }
inline constexpr ScopeSet kAnyScope = Scope::kPut | Scope::kRead | ScopeSet(Scope::kAdmin);

struct ScopeName {
  Scope scope;
  const char* name;  // As spelled in token files.
};
inline constexpr ScopeName kScopeNames[] = {{Scope::kPut, "put"}, {Scope::kRead, "read"}, {Scope::kAdmin, "admin"}};

using Sha256 = std::array<uint8_t, 32>;

struct TokenGrant {
  std::string name;
  Sha256 sha256;
  std::vector<std::string> run_prefixes;  // Not empty.
  ScopeSet scopes;                        // Not empty.
  std::optional<int64_t> max_runs;        // Above 0.
  std::optional<std::chrono::system_clock::time_point> expires;

  bool covers(absl::string_view run) const;
};

// INVALID_ARGUMENT naming the entry and its key. An empty text is an error, so that a file that is being written does
// not lock everybody out; "[]" is an empty list.
absl::StatusOr<std::vector<TokenGrant>> ParseTokenFile(const std::string& text);

}  // namespace routing_replay::server

#endif  // SERVER_SECURITY_TOKEN_FILE_H_
