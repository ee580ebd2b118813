// A new token, and what the server is to know of it.
#ifndef CLIENT_RRCTL_TOKEN_H_
#define CLIENT_RRCTL_TOKEN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/rrctl/table.h"

namespace routing_replay::client {

struct TokenOptions {
  std::string name;
  std::vector<std::string> run_prefixes;
  std::vector<std::string> scopes;
  std::string expires;
  int64_t max_runs = 0;  // 0: no such limit.
  std::string file;      // That gets the token; empty: it is in the answer.
  std::string append;    // The server's token file, which gets the entry by a rename; empty: none does.
};

// {"entry": a line for the server's token file, "token" or "file"}. 256 bits by chance. ALREADY_EXISTS for a file that
// is there, INVALID_ARGUMENT for what the server would not take, of the entry or of the file with it, PERMISSION_DENIED
// for a token file that would change its owner, and other errors that name a file. An error leaves all files as they
// were.
absl::StatusOr<Document> MakeToken(const TokenOptions& options);

// Of prefixes that do not end with a separator: which further runs they cover, for people; "" where all of them do.
std::string HintFor(const TokenOptions& options);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_TOKEN_H_
