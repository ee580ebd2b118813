#include "client/rrctl/doctor/tls_probe.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <signal.h>

#include <ctime>
#include <memory>

#include "absl/strings/str_cat.h"
#include "proto/wire/human.h"
#include "proto/wire/openssl_free.h"

namespace routing_replay::client {
namespace {

using Context = std::unique_ptr<SSL_CTX, OpenSslFree<SSL_CTX_free>>;
using Connection = std::unique_ptr<SSL, OpenSslFree<SSL_free>>;
using Certificate = std::unique_ptr<X509, OpenSslFree<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, OpenSslFree<EVP_PKEY_free>>;
using Bio = std::unique_ptr<BIO, OpenSslFree<BIO_free>>;

// While one is there, writing to a connection that is closed is an error and no signal.
class WithoutBrokenPipe {
 public:
  WithoutBrokenPipe() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~WithoutBrokenPipe() {
    const timespec now{};
    while (sigtimedwait(&signal_, nullptr, &now) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutBrokenPipe(const WithoutBrokenPipe&) = delete;
  WithoutBrokenPipe& operator=(const WithoutBrokenPipe&) = delete;

 private:
  sigset_t signal_, before_;
};

constexpr unsigned char kHttp2[] = {2, 'h', '2'};

Bio Reader(const std::string& text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

// The oldest reason in OpenSSL's queue, which is emptied.
std::string Reason(const char* otherwise) {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  const char* reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  return reason == nullptr ? otherwise : reason;
}

absl::Status AddAuthorities(SSL_CTX* context, const std::string& pem) {
  if (pem.empty()) {
    SSL_CTX_set_default_verify_paths(context);
    return absl::OkStatus();
  }
  const Bio reader = Reader(pem);
  int added = 0;
  while (const Certificate authority{PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)}) {
    added += X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority.get());
  }
  ERR_clear_error();
  return added > 0 ? absl::OkStatus() : absl::InvalidArgumentError("cacert: holds no certificate in PEM");
}

absl::Status AddIdentity(SSL_CTX* context, const TlsIdentity& identity) {
  if (identity.certificate.empty()) return absl::OkStatus();
  const Bio certificates = Reader(identity.certificate);
  const Certificate own(PEM_read_bio_X509(certificates.get(), nullptr, nullptr, nullptr));
  if (own == nullptr || SSL_CTX_use_certificate(context, own.get()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat("cert: ", Reason("holds no certificate in PEM")));
  }
  while (X509* signer = PEM_read_bio_X509(certificates.get(), nullptr, nullptr, nullptr)) {
    SSL_CTX_add_extra_chain_cert(context, signer);  // Takes it.
  }
  ERR_clear_error();
  const Key key(PEM_read_bio_PrivateKey(Reader(identity.key).get(), nullptr, nullptr, nullptr));
  if (key == nullptr || SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat("key: ", Reason("holds no key in PEM")));
  }
  return absl::OkStatus();
}

void ExpectName(SSL* connection, const std::string& name) {
  in6_addr any;
  const bool address = inet_pton(AF_INET, name.c_str(), &any) == 1 || inet_pton(AF_INET6, name.c_str(), &any) == 1;
  if (address) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(connection), name.c_str());
  } else {
    SSL_set1_host(connection, name.c_str());
    SSL_set_tlsext_host_name(connection, name.c_str());
  }
}

std::string NameText(const X509_NAME* name) {
  const Bio out(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(out.get(), name, 0, XN_FLAG_RFC2253);
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return std::string(text, size);
}

std::string AlternativeNames(const X509* certificate) {
  const int at = X509_get_ext_by_NID(certificate, NID_subject_alt_name, -1);
  if (at < 0) return "";
  const Bio out(BIO_new(BIO_s_mem()));
  X509V3_EXT_print(out.get(), X509_get_ext(certificate, at), 0, 0);
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return std::string(text, size);
}

void Describe(SSL* connection, TlsProbe& probe) {
  const Certificate shown(SSL_get1_peer_certificate(connection));
  if (shown == nullptr) return;
  probe.subject = NameText(X509_get_subject_name(shown.get()));
  probe.names = AlternativeNames(shown.get());
  probe.issuer = NameText(X509_get_issuer_name(shown.get()));
  std::tm end{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(shown.get()), &end) == 1) {
    const auto time = std::chrono::system_clock::from_time_t(timegm(&end));
    probe.not_after = Timestamp(time);
    probe.seconds_left =
        std::chrono::duration_cast<std::chrono::seconds>(time - std::chrono::system_clock::now()).count();
  }
  const long verified = SSL_get_verify_result(connection);
  if (verified != X509_V_OK) probe.distrust = X509_verify_cert_error_string(verified);
  const unsigned char* protocol = nullptr;
  unsigned int size = 0;
  SSL_get0_alpn_selected(connection, &protocol, &size);
  probe.http2 = std::string(reinterpret_cast<const char*>(protocol), size) == "h2";
}

}  // namespace

absl::StatusOr<TlsProbe> ProbeTls(const Socket& socket, const TlsIdentity& identity) {
  const WithoutBrokenPipe guard;
  ERR_clear_error();
  const Context context(SSL_CTX_new(TLS_client_method()));
  if (absl::Status status = AddAuthorities(context.get(), identity.authorities); !status.ok()) return status;
  if (absl::Status status = AddIdentity(context.get(), identity); !status.ok()) return status;
  SSL_CTX_set_alpn_protos(context.get(), kHttp2, sizeof(kHttp2));
  // The handshake goes on whatever it thinks of the certificate, so that there is something to tell.
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  const Connection connection(SSL_new(context.get()));
  if (!identity.name.empty()) ExpectName(connection.get(), identity.name);
  SSL_set_fd(connection.get(), socket.descriptor());
  if (SSL_connect(connection.get()) != 1)
    return absl::UnavailableError(Reason("no answer, or the connection was closed"));
  TlsProbe probe{.version = SSL_get_version(connection.get())};
  Describe(connection.get(), probe);
  // With TLS 1.3 a server that does not take the client's certificate says so only now, where others send their
  // settings.
  char byte;
  if (const int read = SSL_read(connection.get(), &byte, 1); read <= 0) {
    const bool closed = SSL_get_error(connection.get(), read) == SSL_ERROR_ZERO_RETURN;
    probe.ended = Reason(closed ? "closed" : "");
  }
  SSL_shutdown(connection.get());
  return probe;
}

bool SpeaksTls(const Socket& socket) {
  const WithoutBrokenPipe guard;
  ERR_clear_error();
  const Context context(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  SSL_CTX_set_alpn_protos(context.get(), kHttp2, sizeof(kHttp2));
  const Connection connection(SSL_new(context.get()));
  SSL_set_fd(connection.get(), socket.descriptor());
  const bool spoken = SSL_connect(connection.get()) == 1;
  ERR_clear_error();
  return spoken;
}

}  // namespace routing_replay::client
