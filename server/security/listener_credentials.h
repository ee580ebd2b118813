// TLS for gRPC listeners. The only file that uses what gRPC calls experimental.
#ifndef SERVER_SECURITY_LISTENER_CREDENTIALS_H_
#define SERVER_SECURITY_LISTENER_CREDENTIALS_H_

#include <grpcpp/security/server_credentials.h>

#include <chrono>
#include <memory>

#include "server/security/tls_files.h"

namespace routing_replay {

// TLS with the files, which are read again every `reload_interval`: connections that are there stay as they are. With a
// client CA, a client without a certificate of it gets no connection. Requires that CheckTlsFiles is happy and that a
// certificate is named.
std::shared_ptr<grpc::ServerCredentials> TlsListenerCredentials(const TlsFiles& files,
                                                                std::chrono::milliseconds reload_interval);

}  // namespace routing_replay

#endif  // SERVER_SECURITY_LISTENER_CREDENTIALS_H_
