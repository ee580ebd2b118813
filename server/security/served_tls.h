// Reads and checks the operator's TLS files. Listeners always use the last complete and valid set, whatever state the
// files are in now.
#ifndef SERVER_SECURITY_SERVED_TLS_H_
#define SERVER_SECURITY_SERVED_TLS_H_

#include <grpc/grpc_security.h>
#include <grpcpp/security/server_credentials.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/mutex.h"

namespace routing_replay::server {

struct TlsFiles {
  std::string certificate;  // PEM: the certificate, then those that lead to a root. Empty: plaintext.
  std::string key;          // PEM, without a passphrase.
  // PEM: authorities that sign client certificates, which are then required. Empty: clients are not asked.
  std::string client_ca;
};

// The contents of the files, in PEM form; empty if no file is named.
struct TlsTexts {
  std::string certificate;
  std::string key;
  std::string client_ca;
  std::chrono::system_clock::time_point expires;  // When the certificate expires.
  friend bool operator==(const TlsTexts&, const TlsTexts&) = default;
};

// Reads and checks the files: every certificate in them is complete, and the key matches the first one.
// INVALID_ARGUMENT naming the setting and the file.
absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files);

class ServedTls {
 public:
  // Errors as ReadTlsFiles.
  static absl::StatusOr<std::unique_ptr<ServedTls>> Create(const TlsFiles& files);

  // Reads the files again and uses them if they are good; returns true if they changed. After an error (as for Create)
  // the previous set stays in use. One thread at a time.
  absl::StatusOr<bool> Reload();

  // Credentials for a listener. Each handshake takes the set in use at that time; existing connections keep theirs.
  // With a client CA, only clients with a certificate that it signed can connect. This object must outlive the server.
  // One thread at a time.
  std::shared_ptr<grpc::ServerCredentials> NewCredentials();

  // The set in use. Thread-safe.
  std::shared_ptr<const TlsTexts> texts() const;

 private:
  struct Listener {
    const ServedTls* tls;
    Mutex mutex;
    std::shared_ptr<const TlsTexts> texts ABSL_GUARDED_BY(mutex);  // The set that gRPC has.
  };
  explicit ServedTls(const TlsFiles& files) : files_(files) {}
  // gRPC calls this at each handshake.
  static grpc_ssl_certificate_config_reload_status Fetch(void* listener, grpc_ssl_server_certificate_config** config);

  const TlsFiles files_;
  std::deque<Listener> listeners_;
  mutable Mutex mutex_;
  std::shared_ptr<const TlsTexts> texts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_SECURITY_SERVED_TLS_H_
