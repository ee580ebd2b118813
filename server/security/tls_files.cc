#include "server/security/tls_files.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cstdio>
#include <ctime>
#include <memory>

#include "absl/strings/str_cat.h"

namespace routing_replay {
namespace {

template <auto free_function>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    free_function(object);
  }
};
using FilePtr = std::unique_ptr<std::FILE, Free<std::fclose>>;
using CertificatePtr = std::unique_ptr<X509, Free<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;

// A key with a passphrase is refused; OpenSSL would ask the terminal for it.
int NoPassphrase(char*, int, int, void*) { return 0; }

absl::StatusOr<FilePtr> Open(absl::string_view setting, const std::string& path) {
  FilePtr file(std::fopen(path.c_str(), "re"));
  if (file != nullptr) return file;
  return absl::InvalidArgumentError(absl::StrCat("--", setting, ": cannot read ", path));
}

absl::Status NotPem(absl::string_view setting, const std::string& path, absl::string_view what) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat("--", setting, ": ", path, " holds no ", what, " in PEM form"));
}

absl::StatusOr<CertificatePtr> ReadCertificate(absl::string_view setting, const std::string& path) {
  const auto file = Open(setting, path);
  if (!file.ok()) return file.status();
  CertificatePtr certificate(PEM_read_X509(file->get(), nullptr, NoPassphrase, nullptr));
  if (certificate == nullptr) return NotPem(setting, path, "certificate");
  return certificate;
}

absl::StatusOr<KeyPtr> ReadKey(absl::string_view setting, const std::string& path) {
  const auto file = Open(setting, path);
  if (!file.ok()) return file.status();
  KeyPtr key(PEM_read_PrivateKey(file->get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr) return NotPem(setting, path, "private key without a passphrase");
  return key;
}

}  // namespace

absl::Status CheckTlsFiles(const TlsFiles& files) {
  if (files.certificate.empty() && files.key.empty() && files.client_ca.empty()) return absl::OkStatus();
  if (files.certificate.empty()) return absl::InvalidArgumentError("--tls-cert: missing beside the other TLS settings");
  if (files.key.empty()) return absl::InvalidArgumentError("--tls-key: missing beside --tls-cert");
  const auto certificate = ReadCertificate("tls-cert", files.certificate);
  if (!certificate.ok()) return certificate.status();
  const auto key = ReadKey("tls-key", files.key);
  if (!key.ok()) return key.status();
  if (X509_check_private_key(certificate->get(), key->get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(
        absl::StrCat("--tls-key: ", files.key, " is not the key of the certificate in ", files.certificate));
  }
  if (files.client_ca.empty()) return absl::OkStatus();
  return ReadCertificate("tls-client-ca", files.client_ca).status();
}

absl::StatusOr<std::chrono::system_clock::time_point> CertificateExpiry(const std::string& certificate_file) {
  const auto certificate = ReadCertificate("tls-cert", certificate_file);
  if (!certificate.ok()) return certificate.status();
  std::tm time{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate->get()), &time) != 1) {
    return NotPem("tls-cert", certificate_file, "certificate with a time of expiry");
  }
  return std::chrono::system_clock::from_time_t(timegm(&time));
}

}  // namespace routing_replay
