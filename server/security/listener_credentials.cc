#include "server/security/listener_credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

namespace routing_replay::server {
namespace {

constexpr unsigned kLookSeconds = 1;

}  // namespace

// gRPC ends the process where a file that it watches is empty, and refuses everybody where one is not whole. So it
// watches none of the operator's.
std::shared_ptr<grpc::ServerCredentials> TlsListenerCredentials(const ServedTls& served) {
  namespace tls = grpc::experimental;
  const TlsFiles& shown = served.shown();
  const auto provider = std::make_shared<tls::FileWatcherCertificateProvider>(shown.key, shown.certificate,
                                                                              shown.client_ca, kLookSeconds);
  tls::TlsServerCredentialsOptions options(provider);
  options.watch_identity_key_cert_pairs();
  if (!shown.client_ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return tls::TlsServerCredentials(options);
}

}  // namespace routing_replay::server
