// The token file: who may do what, as YAML or JSON. It holds hashes; what is in it opens nothing.
//
//   - name: rollout            # For people and logs.
//     sha256: 9f86d08188…      # Of the token, in hex. `rrctl token` makes a token and its entry.
//     runs: [grpo-]            # Prefixes of run names; "" is every run.
//     scopes: [put, read]      # Any of put, read, admin.
//     max_runs: 20             # Optional: it makes no further run where there are so many of its prefixes.
//     expires: 2027-01-31      # Optional: the begin of that day in UTC, or a time with its zone (RFC 3339).
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
#include "server/security/scope.h"

namespace routing_replay::server {

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

// INVALID_ARGUMENT naming the entry and its key. An empty text is no list, so that a file that is being written does
// not lock everybody out; "[]" is one.
absl::StatusOr<std::vector<TokenGrant>> ParseTokenFile(const std::string& text);

}  // namespace routing_replay::server

#endif  // SERVER_SECURITY_TOKEN_FILE_H_
