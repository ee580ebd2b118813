// The operator's TLS files: read and checked, and what the listeners show of them, which is always a whole set that was
// found good, whatever state the files are in. And which certificates of clients are still trusted.
#ifndef SERVER_SECURITY_SERVED_TLS_H_
#define SERVER_SECURITY_SERVED_TLS_H_

#include <grpc/grpc_security.h>
#include <grpcpp/security/server_credentials.h>

#include <array>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"

namespace routing_replay::server {

struct TlsFiles {
  std::string certificate;  // PEM: the certificate, then those that lead to a root. Empty: plaintext.
  std::string key;          // PEM, without a passphrase.
  std::string client_ca;    // PEM: who signs client certificates, which are then required. Empty: nobody is asked.
};

// What is in the files, in PEM form; empty where none is named.
struct TlsTexts {
  std::string certificate;
  std::string key;
  std::string client_ca;
  std::chrono::system_clock::time_point expires;  // Of the certificate.
  friend bool operator==(const TlsTexts&, const TlsTexts&) = default;
};

// The files, read once and found good: every certificate in them is whole, and the key fits the first one.
// INVALID_ARGUMENT naming the setting and the file.
absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files);

class ServedTls {
 public:
  // Errors as ReadTlsFiles.
  static absl::StatusOr<std::unique_ptr<ServedTls>> Create(const TlsFiles& files);

  // Takes the files as they are now, if they are good: whether they are others than before. On an error, as of Create,
  // what is served stays as it was. One thread at a time.
  absl::StatusOr<bool> Reload();

  // Of a listener, with what is served at each handshake: connections that are there stay as they are. With a client
  // CA, a client without a certificate of it gets no connection. This must outlive the server. One thread at a time.
  std::shared_ptr<grpc::ServerCredentials> NewCredentials();

  // What is served. Thread-safe.
  std::shared_ptr<const TlsTexts> texts() const;

 private:
  struct Listener {
    const ServedTls* tls;
    Mutex mutex;
    std::shared_ptr<const TlsTexts> texts ABSL_GUARDED_BY(mutex);  // That gRPC has.
  };
  explicit ServedTls(const TlsFiles& files) : files_(files) {}
  // What gRPC asks at each handshake.
  static grpc_ssl_certificate_config_reload_status Fetch(void* listener, grpc_ssl_server_certificate_config** config);

  const TlsFiles files_;
  std::deque<Listener> listeners_;
  mutable Mutex mutex_;
  std::shared_ptr<const TlsTexts> texts_ ABSL_GUARDED_BY(mutex_);
};

// Thread-safe.
class ClientCertificates {
 public:
  // `served`, which has a client CA, and `clock` must outlive this.
  ClientCertificates(const ServedTls& served, const Clock& clock) : served_(served), clock_(clock) {}

  // OK if `certificate` leads, perhaps by way of those in `chain` (both PEM), to the client CA as it is served now, and
  // none on that way has expired. UNAVAILABLE otherwise, as for one that gets no connection: another connection, with
  // another certificate, is what helps. A good verdict is kept until the client CA changes, as every call asks; a bad
  // one is not: a connection that goes on with the TLS session of an earlier one has no chain, and must not shut its
  // certificate out from others.
  absl::Status Check(absl::string_view certificate, absl::string_view chain) const;

 private:
  using Hash = std::array<unsigned char, 32>;
  const ServedTls& served_;
  const Clock& clock_;
  mutable Mutex mutex_;
  mutable std::shared_ptr<const TlsTexts> texts_ ABSL_GUARDED_BY(mutex_);  // What the verdicts are about.
  // Of a certificate: when the first on its way expires.
  mutable std::map<Hash, std::chrono::system_clock::time_point> good_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_SECURITY_SERVED_TLS_H_
