// Certificates and keys in PEM form, as OpenSSL objects.
#ifndef SERVER_SECURITY_PEM_H_
#define SERVER_SECURITY_PEM_H_

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/openssl_free.h"

namespace routing_replay::server {

using CertificatePtr = std::unique_ptr<X509, OpenSslFree<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, OpenSslFree<EVP_PKEY_free>>;

// Every certificate of the text, in order. INVALID_ARGUMENT where there is none, or one is not whole.
absl::StatusOr<std::vector<CertificatePtr>> CertificatesOf(absl::string_view pem);
// The first private key. INVALID_ARGUMENT where there is none, or it wants a passphrase.
absl::StatusOr<KeyPtr> PrivateKeyOf(absl::string_view pem);

// After that time it is good no more. INVALID_ARGUMENT where it states none that can be read.
absl::StatusOr<std::chrono::system_clock::time_point> ExpiryOf(const X509* certificate);

// The same again as text, and nothing else that may have been in the file.
std::string ToPem(const std::vector<CertificatePtr>& certificates);
std::string ToPem(const KeyPtr& key);

}  // namespace routing_replay::server

#endif  // SERVER_SECURITY_PEM_H_
