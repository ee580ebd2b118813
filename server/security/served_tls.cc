#include "server/security/served_tls.h"

#include <grpc/grpc.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/wire/security.h"
#include "proto/wire/status_macros.h"

namespace routing_replay::server {
namespace {

using std::chrono::system_clock;
using CertificatePtr = std::unique_ptr<X509, OpenSslFree<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, OpenSslFree<EVP_PKEY_free>>;
using BioPtr = std::unique_ptr<BIO, OpenSslFree<BIO_free>>;

BioPtr Open(absl::string_view text) { return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

// Rejects a key with a passphrase, for which OpenSSL would otherwise ask on the terminal.
int NoPassphrase(char*, int, int, void*) { return 0; }

// Parses all certificates of the text, in order. INVALID_ARGUMENT if there is none, or if one is incomplete.
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
  if (!at_end) return absl::InvalidArgumentError("holds an incomplete certificate");
  return certificates;
}

absl::StatusOr<KeyPtr> PrivateKeyOf(absl::string_view pem) {
  KeyPtr key(PEM_read_bio_PrivateKey(Open(pem).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (key == nullptr) return absl::InvalidArgumentError("holds no PEM private key without a passphrase");
  return key;
}

absl::StatusOr<system_clock::time_point> ExpiryOf(const X509* certificate) {
  std::tm time{};
  const bool good = ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &time) == 1;
  ERR_clear_error();
  if (!good) return absl::InvalidArgumentError("holds a certificate without a valid expiry time");
  return system_clock::from_time_t(timegm(&time));
}

absl::Status Fault(absl::string_view setting, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("--", setting, ": ", what));
}

// Reads the file `path` into `text` and parses it with `read`. Errors of both steps name the setting.
template <typename Value>
absl::StatusOr<Value> Read(absl::string_view setting, const std::string& path,
                           absl::StatusOr<Value> (*read)(absl::string_view), std::string& text) {
  auto found = ChangingFile(path).Look();
  if (!found.ok()) return Fault(setting, absl::StrCat("cannot read ", path, ": ", found.status().message()));
  text = **std::move(found);
  auto value = read(text);
  if (!value.ok()) return Fault(setting, absl::StrCat(path, " ", value.status().message()));
  return value;
}

// Credentials whose certificates gRPC fetches from us at each handshake. gRPC's own file watcher aborts on an empty
// file, and rejects all clients while a file is incomplete.
class FetchedCredentials final : public grpc::ServerCredentials {
 public:
  explicit FetchedCredentials(grpc_server_credentials* credentials) : credentials_(credentials) {}
  ~FetchedCredentials() override { grpc_server_credentials_release(credentials_); }
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* const credentials_;
};

}  // namespace

absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files) {
  TlsTexts texts;
  if (files.certificate.empty() && files.key.empty() && files.client_ca.empty()) return texts;
  if (files.certificate.empty()) return Fault("tls-cert", "must be given with the other TLS settings");
  if (files.key.empty()) return Fault("tls-key", "must be given with --tls-cert");
  RR_ASSIGN_OR_RETURN(const auto chain, Read("tls-cert", files.certificate, CertificatesOf, texts.certificate));
  const auto expires = ExpiryOf(chain.front().get());
  if (!expires.ok()) return Fault("tls-cert", absl::StrCat(files.certificate, " ", expires.status().message()));
  RR_ASSIGN_OR_RETURN(const auto key, Read("tls-key", files.key, PrivateKeyOf, texts.key));
  if (X509_check_private_key(chain.front().get(), key.get()) != 1) {
    ERR_clear_error();
    return Fault("tls-key", absl::StrCat(files.key, " is not the key of the certificate in ", files.certificate));
  }
  texts.expires = *expires;
  if (files.client_ca.empty()) return texts;
  RR_ASSIGN_OR_RETURN(const auto authorities, Read("tls-client-ca", files.client_ca, CertificatesOf, texts.client_ca));
  return texts;
}

absl::StatusOr<std::unique_ptr<ServedTls>> ServedTls::Create(const TlsFiles& files) {
  std::unique_ptr<ServedTls> served(new ServedTls(files));
  if (const auto loaded = served->Reload(); !loaded.ok()) return loaded.status();
  return served;
}

absl::StatusOr<bool> ServedTls::Reload() {
  RR_ASSIGN_OR_RETURN(auto texts, ReadTlsFiles(files_));
  if (const auto present = this->texts(); present != nullptr && *present == texts) return false;
  MutexLock lock(mutex_);
  texts_ = std::make_shared<const TlsTexts>(std::move(texts));
  return true;
}

std::shared_ptr<const TlsTexts> ServedTls::texts() const {
  MutexLock lock(mutex_);
  return texts_;
}

grpc_ssl_certificate_config_reload_status ServedTls::Fetch(void* listener,
                                                           grpc_ssl_server_certificate_config** config) {
  Listener& of = *static_cast<Listener*>(listener);
  const auto texts = of.tls->texts();
  MutexLock lock(of.mutex);
  if (of.texts == texts) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  of.texts = texts;
  const grpc_ssl_pem_key_cert_pair pair = {texts->key.c_str(), texts->certificate.c_str()};
  // gRPC requires authorities even if clients are not asked for certificates.
  const std::string& authorities = texts->client_ca.empty() ? texts->certificate : texts->client_ca;
  *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

std::shared_ptr<grpc::ServerCredentials> ServedTls::NewCredentials() {
  Listener& listener = listeners_.emplace_back();
  listener.tls = this;
  const auto asked = files_.client_ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                              : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
  return std::make_shared<FetchedCredentials>(grpc_ssl_server_credentials_create_with_options(
      grpc_ssl_server_credentials_create_options_using_config_fetcher(asked, Fetch, &listener)));
}

}  // namespace routing_replay::server
