// The certificate that HTTPS connections begin with: that of the listeners, read again as it changes.
#ifndef SERVER_OPERATIONS_HTTP_TLS_CONTEXT_H_
#define SERVER_OPERATIONS_HTTP_TLS_CONTEXT_H_

#include <boost/asio/ssl/context.hpp>
#include <chrono>
#include <memory>

#include "absl/status/statusor.h"
#include "proto/wire/clock.h"
#include "server/security/tls_files.h"

namespace routing_replay {

// Not thread-safe. Clients are not asked for certificates, as probes have none.
class TlsContext {
 public:
  // UNAVAILABLE naming a file that cannot be used. `clock` outlives it.
  static absl::StatusOr<std::unique_ptr<TlsContext>> Create(const TlsFiles& files, std::chrono::milliseconds interval,
                                                            const Clock& clock);

  // For a new connection. Files that cannot be used leave it as it was.
  std::shared_ptr<boost::asio::ssl::context> Get();

 private:
  TlsContext(const TlsFiles& files, std::chrono::milliseconds interval, const Clock& clock)
      : files_(files), interval_(interval), clock_(clock), next_(clock.Now() + interval) {}

  const TlsFiles files_;
  const std::chrono::milliseconds interval_;
  const Clock& clock_;
  Clock::Time next_;
  std::shared_ptr<boost::asio::ssl::context> context_;
};

}  // namespace routing_replay

#endif  // SERVER_OPERATIONS_HTTP_TLS_CONTEXT_H_
