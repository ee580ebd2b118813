// The servers that an endpoint names, one by one.
#ifndef CLIENT_RRCTL_DOCTOR_SERVERS_H_
#define CLIENT_RRCTL_DOCTOR_SERVERS_H_

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace routing_replay::client {

struct ServerAddress {
  std::string endpoint;  // As a client takes it.
  std::string host;      // A name, or an address without brackets.
  std::string port;
  std::string unix_path;  // Not empty: a socket of this machine instead of host and port.
};

// Of every kind of endpoint that a client takes, or of the environment's where it is empty. INVALID_ARGUMENT (field
// endpoint) where it is none, DEADLINE_EXCEEDED where the file of a "file:PATH" stays empty for `timeout`.
absl::StatusOr<std::vector<ServerAddress>> ServersOf(absl::string_view endpoint, std::chrono::milliseconds timeout);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_DOCTOR_SERVERS_H_
