// Who may see names of runs on the operations port, and change the log level.
#ifndef SERVER_OPERATIONS_OPERATOR_CHECK_H_
#define SERVER_OPERATIONS_OPERATOR_CHECK_H_

#include "server/config.h"
#include "server/operations/operations_routes.h"
#include "server/security/access_control.h"

namespace routing_replay::server {

// By tokens, where the server has some. Without:
// - who calls the server by another name than those of its settings is refused: a page in an operator's browser comes
// so
//   that has the name of its own server lead here. "localhost" and addresses are never such a name.
// - changes come from this machine alone.
// - where clients are known by their certificates, which the operations port does not ask for, nobody may on a port
// that
//   is reached from elsewhere.
// `access` outlives it.
OperatorCheck MakeOperatorCheck(const ServerConfig& config, const AccessControl& access);

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_OPERATOR_CHECK_H_
