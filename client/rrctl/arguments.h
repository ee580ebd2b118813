// Command-line words, before they are parsed.
#ifndef CLIENT_RRCTL_ARGUMENTS_H_
#define CLIENT_RRCTL_ARGUMENTS_H_

#include <string>
#include <vector>

namespace routing_replay::client {

// "--watch", "5" → "--watch=5" where the second word is a number or a time: an option whose value may be left out would
// otherwise take whatever comes next. Nothing changes behind "--".
std::vector<std::string> JoinWatchInterval(std::vector<std::string> words);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_ARGUMENTS_H_
