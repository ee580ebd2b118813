// The command that makes a token, and its entry for the server's token file.
#ifndef CLIENT_RRCTL_TOKEN_H_
#define CLIENT_RRCTL_TOKEN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/rrctl/application.h"

namespace routing_replay::client {

void AddToken(Application& application);

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

// For people: which further runs a prefix covers that does not end with a separator; "" where all of them do.
std::string PrefixHint(const TokenOptions& options);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_TOKEN_H_
