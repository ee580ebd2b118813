// Who may see names of runs on the operations port, and change the log level.
#ifndef SERVER_OPERATIONS_OPERATOR_CHECK_H_
#define SERVER_OPERATIONS_OPERATOR_CHECK_H_

#include "server/config.h"
#include "server/operations/operations_routes.h"
#include "server/security/access_control.h"

namespace routing_replay {

// By tokens. Where clients are known by their certificates alone, which the operations port does not ask for, nobody
// may who comes from elsewhere. `access` outlives it.
OperatorCheck MakeOperatorCheck(const ServerConfig& config, const AccessControl& access);

}  // namespace routing_replay

#endif  // SERVER_OPERATIONS_OPERATOR_CHECK_H_
