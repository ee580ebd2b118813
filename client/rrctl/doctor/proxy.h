// The proxy variables of the environment, as gRPC reads them.
#ifndef CLIENT_RRCTL_DOCTOR_PROXY_H_
#define CLIENT_RRCTL_DOCTOR_PROXY_H_

#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "client/rrctl/doctor/finding.h"
#include "client/rrctl/doctor/servers.h"

namespace routing_replay::client {

// The value of a variable; empty where it is not set.
using Environment = std::function<std::string(const char* name)>;

// Our clients ask for no proxy, stock clients take the first of grpc_proxy, https_proxy and http_proxy, unless
// no_grpc_proxy (or, where that is not set, no_proxy) has an entry with which the host ends. A warning where they would
// go through one.
Finding CheckProxy(const ServerAddress& server, const Environment& environment);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_DOCTOR_PROXY_H_
