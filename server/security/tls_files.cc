#include "server/security/tls_files.h"

#include <openssl/err.h>

#include "absl/strings/str_cat.h"
#include "proto/wire/changing_file.h"
#include "server/security/pem.h"

namespace routing_replay::server {
namespace {

absl::Status Fault(absl::string_view setting, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("--", setting, ": ", what));
}

absl::StatusOr<std::string> Read(absl::string_view setting, const std::string& path) {
  auto text = ChangingFile(path).Look();
  if (!text.ok()) return Fault(setting, absl::StrCat("cannot read ", path, ": ", text.status().message()));
  return **std::move(text);
}

absl::Status FaultOf(absl::string_view setting, const std::string& path, const absl::Status& what) {
  return Fault(setting, absl::StrCat(path, " ", what.message()));
}

}  // namespace

absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files) {
  TlsTexts texts;
  if (files.certificate.empty() && files.key.empty() && files.client_ca.empty()) return texts;
  if (files.certificate.empty()) return Fault("tls-cert", "missing beside the other TLS settings");
  if (files.key.empty()) return Fault("tls-key", "missing beside --tls-cert");
  const auto certificate = Read("tls-cert", files.certificate);
  if (!certificate.ok()) return certificate.status();
  const auto chain = CertificatesOf(*certificate);
  if (!chain.ok()) return FaultOf("tls-cert", files.certificate, chain.status());
  const auto expires = ExpiryOf(chain->front().get());
  if (!expires.ok()) return FaultOf("tls-cert", files.certificate, expires.status());
  const auto key = Read("tls-key", files.key);
  if (!key.ok()) return key.status();
  const auto private_key = PrivateKeyOf(*key);
  if (!private_key.ok()) return FaultOf("tls-key", files.key, private_key.status());
  if (X509_check_private_key(chain->front().get(), private_key->get()) != 1) {
    ERR_clear_error();
    return Fault("tls-key", absl::StrCat(files.key, " is not the key of the certificate in ", files.certificate));
  }
  texts = {.certificate = ToPem(*chain), .key = ToPem(*private_key), .client_ca = "", .expires = *expires};
  if (files.client_ca.empty()) return texts;
  const auto client_ca = Read("tls-client-ca", files.client_ca);
  if (!client_ca.ok()) return client_ca.status();
  const auto authorities = CertificatesOf(*client_ca);
  if (!authorities.ok()) return FaultOf("tls-client-ca", files.client_ca, authorities.status());
  texts.client_ca = ToPem(*authorities);
  return texts;
}

absl::Status CheckTlsFiles(const TlsFiles& files) { return ReadTlsFiles(files).status(); }

}  // namespace routing_replay::server
