#include "server/security/listener_credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>

namespace routing_replay {

std::shared_ptr<grpc::ServerCredentials> TlsListenerCredentials(const TlsFiles& files,
                                                                std::chrono::milliseconds reload_interval) {
  namespace tls = grpc::experimental;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(reload_interval).count();
  const auto provider = std::make_shared<tls::FileWatcherCertificateProvider>(
      files.key, files.certificate, files.client_ca, static_cast<unsigned>(std::max<int64_t>(seconds, 1)));
  tls::TlsServerCredentialsOptions options(provider);
  options.watch_identity_key_cert_pairs();
  if (!files.client_ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return tls::TlsServerCredentials(options);
}

}  // namespace routing_replay
