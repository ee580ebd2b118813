#include "server/security/pem.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include <ctime>
#include <utility>

namespace routing_replay::server {
namespace {

using BioPtr = std::unique_ptr<BIO, OpenSslFree<BIO_free>>;

BioPtr Open(absl::string_view text) { return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

// A key with a passphrase is refused; OpenSSL would ask the terminal for it.
int NoPassphrase(char*, int, int, void*) { return 0; }

std::string TextOf(const BioPtr& bio) {
  char* text = nullptr;
  const auto size = BIO_get_mem_data(bio.get(), &text);
  return {text, static_cast<size_t>(size)};
}

}  // namespace

absl::StatusOr<std::vector<CertificatePtr>> CertificatesOf(absl::string_view pem) {
  ERR_clear_error();
  const BioPtr text = Open(pem);
  std::vector<CertificatePtr> certificates;
  while (X509* certificate = PEM_read_bio_X509(text.get(), nullptr, NoPassphrase, nullptr)) {
    certificates.emplace_back(certificate);
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (certificates.empty()) return absl::InvalidArgumentError("holds no certificate in PEM form");
  if (!at_end) return absl::InvalidArgumentError("holds a certificate that is not whole");
  return certificates;
}

absl::StatusOr<KeyPtr> PrivateKeyOf(absl::string_view pem) {
  KeyPtr key(PEM_read_bio_PrivateKey(Open(pem).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (key == nullptr) return absl::InvalidArgumentError("holds no private key without a passphrase in PEM form");
  return key;
}

absl::StatusOr<std::chrono::system_clock::time_point> ExpiryOf(const X509* certificate) {
  std::tm time{};
  const bool good = ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &time) == 1;
  ERR_clear_error();
  if (!good) return absl::InvalidArgumentError("holds a certificate without a time of expiry");
  return std::chrono::system_clock::from_time_t(timegm(&time));
}

std::string ToPem(const std::vector<CertificatePtr>& certificates) {
  const BioPtr text(BIO_new(BIO_s_mem()));
  for (const CertificatePtr& certificate : certificates) PEM_write_bio_X509(text.get(), certificate.get());
  return TextOf(text);
}

std::string ToPem(const KeyPtr& key) {
  const BioPtr text(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  return TextOf(text);
}

}  // namespace routing_replay::server
