// The files of a TLS listener. Knows no gRPC.
#ifndef SERVER_SECURITY_TLS_FILES_H_
#define SERVER_SECURITY_TLS_FILES_H_

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace routing_replay::server {

struct TlsFiles {
  std::string certificate;  // PEM: the certificate, then those that lead to a root. Empty: plaintext.
  std::string key;          // PEM, without a passphrase.
  std::string client_ca;    // PEM: who signs client certificates, which are then required. Empty: nobody is asked.
};

// What is in the files, in PEM form and without anything else; empty where none is named.
struct TlsTexts {
  std::string certificate;
  std::string key;
  std::string client_ca;
  std::chrono::system_clock::time_point expires;  // After that the certificate is good no more.
  friend bool operator==(const TlsTexts&, const TlsTexts&) = default;
};

// The files, read once and found good: every certificate in them is whole, and the key fits the first one.
// INVALID_ARGUMENT naming the setting and the file.
absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files);

// OK if the files can be read and the key fits the certificate, or if none is named. Errors as ReadTlsFiles.
absl::Status CheckTlsFiles(const TlsFiles& files);

}  // namespace routing_replay::server

#endif  // SERVER_SECURITY_TLS_FILES_H_
