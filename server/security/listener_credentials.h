// TLS for gRPC listeners. The only file that uses what gRPC calls experimental.
#ifndef SERVER_SECURITY_LISTENER_CREDENTIALS_H_
#define SERVER_SECURITY_LISTENER_CREDENTIALS_H_

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "server/security/served_tls.h"

namespace routing_replay::server {

// TLS with what is served, which gRPC looks at every second: connections that are there stay as they are. With a client
// CA, a client without a certificate of it gets no connection. `served` must outlive the server.
std::shared_ptr<grpc::ServerCredentials> TlsListenerCredentials(const ServedTls& served);

}  // namespace routing_replay::server

#endif  // SERVER_SECURITY_LISTENER_CREDENTIALS_H_
