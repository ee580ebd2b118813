// Whether the certificate that a client showed is still good: a connection lives longer than what it was opened with.
#ifndef SERVER_SECURITY_CLIENT_CERTIFICATES_H_
#define SERVER_SECURITY_CLIENT_CERTIFICATES_H_

#include <array>
#include <chrono>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"
#include "server/security/served_tls.h"

namespace routing_replay {

// Thread-safe.
class ClientCertificates {
 public:
  // `served`, which has a client CA, and `clock` must outlive this.
  ClientCertificates(const ServedTls& served, const Clock& clock) : served_(served), clock_(clock) {}

  // OK if `certificate` leads, perhaps by way of those in `chain` (both PEM), to the client CA as it is served now and
  // has not expired. UNAVAILABLE otherwise, as for one that gets no connection: another connection, with another
  // certificate, is what helps. What was found is kept until the client CA changes.
  absl::Status Check(absl::string_view certificate, absl::string_view chain) const;

 private:
  using Hash = std::array<unsigned char, 32>;
  struct Verdict {
    bool good = false;
    std::chrono::system_clock::time_point until;  // A good one's.
  };

  const ServedTls& served_;
  const Clock& clock_;
  mutable Mutex mutex_;
  mutable std::shared_ptr<const TlsTexts> texts_ ABSL_GUARDED_BY(mutex_);  // What the verdicts are about.
  mutable std::map<Hash, Verdict> verdicts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay

#endif  // SERVER_SECURITY_CLIENT_CERTIFICATES_H_
