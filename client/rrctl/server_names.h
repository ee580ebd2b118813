// Names on the server, for completion.
#ifndef CLIENT_RRCTL_SERVER_NAMES_H_
#define CLIENT_RRCTL_SERVER_NAMES_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/rrctl/completion.h"

namespace routing_replay::client {

// The runs for "RUN", the samples of the run in `words` for "SAMPLE", of the server in `words` or of the environment's.
// Whoever presses Tab waits a second at most; of a run with very many samples none are named.
std::vector<std::string> ServerNames(absl::string_view argument, const WordsByName& words);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_SERVER_NAMES_H_
