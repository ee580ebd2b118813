// Whether the certificate that a client showed is still good: a connection lives longer than what it was opened with.
#ifndef SERVER_SECURITY_CLIENT_CERTIFICATES_H_
#define SERVER_SECURITY_CLIENT_CERTIFICATES_H_

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"
#include "server/security/served_tls.h"

namespace routing_replay::server {

// Thread-safe.
class ClientCertificates {
 public:
  // `served`, which has a client CA, and `clock` must outlive this.
  ClientCertificates(const ServedTls& served, const Clock& clock) : served_(served), clock_(clock) {}

  // OK if `certificate` leads, perhaps by way of those in `chain` (both PEM), to the client CA as it is served now, and
  // none on that way has expired. UNAVAILABLE otherwise, as for one that gets no connection: another connection, with
  // another certificate, is what helps. What was found is kept until the client CA changes: a good verdict for the
  // certificate, a bad one for it with that chain alone. A connection that goes on with the TLS session of an earlier
  // one has no chain, and so shuts its certificate out from no other.
  absl::Status Check(absl::string_view certificate, absl::string_view chain) const;

 private:
  using Hash = std::array<unsigned char, 32>;
  const ServedTls& served_;
  const Clock& clock_;
  mutable Mutex mutex_;
  mutable std::shared_ptr<const TlsTexts> texts_ ABSL_GUARDED_BY(mutex_);  // What the verdicts are about.
  // Of a certificate: when the first on its way expires.
  mutable std::map<Hash, std::chrono::system_clock::time_point> good_ ABSL_GUARDED_BY(mutex_);
  // Of a certificate with its chain.
  mutable std::set<Hash> bad_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_SECURITY_CLIENT_CERTIFICATES_H_
