// The certificate that HTTPS connections begin with: that of the listeners, as it is served now.
#ifndef SERVER_OPERATIONS_HTTP_TLS_CONTEXT_H_
#define SERVER_OPERATIONS_HTTP_TLS_CONTEXT_H_

#include <boost/asio/ssl/context.hpp>
#include <memory>

#include "absl/status/statusor.h"
#include "server/security/served_tls.h"

namespace routing_replay::server {

// Not thread-safe. Clients are not asked for certificates, as probes have none.
class TlsContext {
 public:
  // UNAVAILABLE where OpenSSL does not take what is served. `served` outlives it.
  static absl::StatusOr<std::unique_ptr<TlsContext>> Create(const ServedTls& served);

  // For a new connection. Where OpenSSL does not take what is served now, it stays as it was.
  std::shared_ptr<boost::asio::ssl::context> Get();

 private:
  explicit TlsContext(const ServedTls& served) : served_(served) {}
  absl::Status Take(std::shared_ptr<const TlsTexts> texts);

  const ServedTls& served_;
  std::shared_ptr<const TlsTexts> taken_;
  std::shared_ptr<boost::asio::ssl::context> context_;
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_HTTP_TLS_CONTEXT_H_
