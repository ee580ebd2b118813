#include "server/operations/operator_check.h"

#include "proto/wire/local_address.h"

namespace routing_replay {

OperatorCheck MakeOperatorCheck(const ServerConfig& config, const AccessControl& access) {
  const bool by_certificate = config.token_file.empty() && !config.tls.client_ca.empty();
  if (by_certificate && !config.operations_listen.empty() && !IsLocalAddress(config.operations_listen)) {
    return
        [](absl::string_view, ScopeSet) { return absl::UnauthenticatedError("no token is known; set --token-file"); };
  }
  return [&access](absl::string_view authorization, ScopeSet any_of) {
    return access.Check(authorization, any_of, /*run=*/"");
  };
}

}  // namespace routing_replay
