#include "proto/wire/tls/tls_context.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "proto/wire/security.h"
#include "proto/wire/status_macros.h"

namespace routing_replay {
inline namespace wire {
namespace {

using CertificatePtr = std::unique_ptr<X509, OpenSslFree<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, OpenSslFree<EVP_PKEY_free>>;
using BioPtr = std::unique_ptr<BIO, OpenSslFree<BIO_free>>;

// Receives several TLS records with one read of the socket. A buffer of this size is still allocated without a system
// call.
constexpr size_t kReadAheadBytes = 64 << 10;
constexpr char kCiphers[] = "ECDHE+AESGCM:ECDHE+CHACHA20";
// AES-128 first: gRPC has the same preference.
constexpr char kCiphersOf13[] = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
// Where Linux distributions keep the trusted authorities. OpenSSL's built-in path is only right for the distribution
// that it was built on.
constexpr const char* kSystemsAuthorities[] = {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                                               "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};

BioPtr Open(absl::string_view text) { return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

// Rejects a key with a passphrase; OpenSSL would ask for it on the terminal.
int NoPassphrase(char*, int, int, void*) { return 0; }

void TrustSystem(SSL_CTX* context) {
  const char* chosen = std::getenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH");
  if (chosen != nullptr && SSL_CTX_load_verify_file(context, chosen) == 1) return;
  SSL_CTX_set_default_verify_paths(context);
  for (const char* file : kSystemsAuthorities) {
    if (SSL_CTX_load_verify_file(context, file) == 1) break;
  }
  ERR_clear_error();
}

absl::StatusOr<TlsContext> NewContext(const SSL_METHOD* method) {
  ERR_clear_error();
  const TlsContext shared(SSL_CTX_new(method), SSL_CTX_free);
  SSL_CTX* context = shared.get();
  if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1 ||
      SSL_CTX_set_cipher_list(context, kCiphers) != 1 || SSL_CTX_set_ciphersuites(context, kCiphersOf13) != 1) {
    return absl::InternalError(absl::StrCat("TLS: ", TakeTlsReason("cannot create a TLS context")));
  }
  // The last frame of a call marks its end, and a reply of Redis states its length, so a connection may end without a
  // TLS close_notify. kTLS is used if the kernel supports it.
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET |
                                   SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_ENABLE_KTLS);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context,
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  // Without AUTO_RETRY, a read that found only TLS control messages returns. Otherwise a flood of them would occupy the
  // thread.
  SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, kReadAheadBytes);
  // Trusts every certificate in the authorities file, even if it is not a root.
  X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(context), X509_V_FLAG_PARTIAL_CHAIN | X509_V_FLAG_TRUSTED_FIRST);
  return shared;
}

}  // namespace

std::string TakeTlsReason(absl::string_view otherwise) {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  const char* reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  return std::string(reason == nullptr ? otherwise : reason);
}

absl::Status TrustAuthorities(SSL_CTX* context, absl::string_view authorities) {
  if (authorities.empty()) {
    TrustSystem(context);
    return absl::OkStatus();
  }
  const BioPtr text = Open(authorities);
  int added = 0;
  while (const CertificatePtr authority{PEM_read_bio_X509(text.get(), nullptr, NoPassphrase, nullptr)}) {
    added += X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority.get());
  }
  const bool whole = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;  // False if the last one is cut off.
  ERR_clear_error();
  return added > 0 && whole ? absl::OkStatus()
                            : absl::InvalidArgumentError("cacert: must contain whole PEM certificates");
}

absl::Status ShowCertificate(SSL_CTX* context, absl::string_view certificate, absl::string_view key) {
  if (certificate.empty()) return absl::OkStatus();
  const BioPtr text = Open(certificate);
  const CertificatePtr own(PEM_read_bio_X509(text.get(), nullptr, NoPassphrase, nullptr));
  if (own == nullptr || SSL_CTX_use_certificate(context, own.get()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat("cert: ", TakeTlsReason("must contain a PEM certificate")));
  }
  while (X509* signer = PEM_read_bio_X509(text.get(), nullptr, NoPassphrase, nullptr)) {
    SSL_CTX_add_extra_chain_cert(context, signer);  // Takes ownership.
  }
  ERR_clear_error();
  const KeyPtr private_key(PEM_read_bio_PrivateKey(Open(key).get(), nullptr, NoPassphrase, nullptr));
  if (private_key == nullptr || SSL_CTX_use_PrivateKey(context, private_key.get()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("key: ", TakeTlsReason("must contain a PEM private key without a passphrase")));
  }
  return absl::OkStatus();
}

bool ExpectName(SSL* connection, const std::string& name) {
  in6_addr any;
  const bool address = inet_pton(AF_INET, name.c_str(), &any) == 1 || inet_pton(AF_INET6, name.c_str(), &any) == 1;
  if (address) return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(connection), name.c_str()) == 1;
  SSL_set_hostflags(connection, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  return SSL_set1_host(connection, name.c_str()) == 1 && SSL_set_tlsext_host_name(connection, name.c_str()) == 1;
}

absl::StatusOr<TlsContext> ServerTlsContext(absl::string_view certificate, absl::string_view key,
                                            absl::string_view client_authorities) {
  RR_ASSIGN_OR_RETURN(TlsContext context, NewContext(TLS_server_method()));
  RR_RETURN_IF_ERROR(ShowCertificate(context.get(), certificate, key));
  if (client_authorities.empty()) return context;
  RR_RETURN_IF_ERROR(TrustAuthorities(context.get(), client_authorities));
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return context;
}

absl::StatusOr<TlsContext> ClientTlsContext(absl::string_view certificate, absl::string_view key,
                                            absl::string_view authorities) {
  RR_ASSIGN_OR_RETURN(TlsContext context, NewContext(TLS_client_method()));
  RR_RETURN_IF_ERROR(ShowCertificate(context.get(), certificate, key));
  RR_RETURN_IF_ERROR(TrustAuthorities(context.get(), authorities));
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  return context;
}

}  // namespace wire
}  // namespace routing_replay
