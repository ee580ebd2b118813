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
  int64_t max_runs = 0;  // 0: no limit.
  std::string file;      // New file for the token; empty: the answer contains it.
  std::string append;    // The server's token file, to which the entry is added by a rename; empty: none.
};

// Makes a token of 256 random bits. Returns "entry", the line for the server's token file, and either "token", the
// token, or "file", the path of the new file that has it. Errors: ALREADY_EXISTS if that file exists, INVALID_ARGUMENT
// if the server would reject the entry or its token file with the entry, PERMISSION_DENIED if the token file could not
// keep its owner, and others that name a file. An error leaves all files unchanged.
absl::StatusOr<Document> MakeToken(const TokenOptions& options);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_TOKEN_H_
