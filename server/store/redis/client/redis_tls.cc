#include "server/store/redis/client/redis_tls.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

int FdOf(BIO* bio) { return *static_cast<const int*>(BIO_get_data(bio)); }

int Send(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = send(FdOf(bio), bytes, static_cast<size_t>(size), MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int Receive(BIO* bio, char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t got = recv(FdOf(bio), bytes, static_cast<size_t>(size), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

long Control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

// OpenSSL's own socket BIO writes without MSG_NOSIGNAL.
const BIO_METHOD* SocketMethod() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "redis socket");
    if (made == nullptr) return made;
    BIO_meth_set_write(made, Send);
    BIO_meth_set_read(made, Receive);
    BIO_meth_set_ctrl(made, Control);
    return made;
  }();
  return method;
}

absl::Status Unusable(absl::string_view field, const std::string& file) {
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("redis store: ", field, ": ", file, ": ", TakeTlsError()),
                   {.reason = Reason::kField, .field = std::string(field)});
}

bool IsAddress(const std::string& host) {
  in6_addr address;
  return inet_pton(AF_INET, host.c_str(), &address) == 1 || inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

bool NamePeer(SSL* ssl, const std::string& host) {
  if (IsAddress(host)) return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str()) == 1;
  SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  return SSL_set_tlsext_host_name(ssl, host.c_str()) == 1 && SSL_set1_host(ssl, host.c_str()) == 1;
}

}  // namespace

std::string TakeTlsError() {
  char text[256] = "unknown TLS error";
  if (const unsigned long code = ERR_get_error(); code != 0) ERR_error_string_n(code, text, sizeof(text));
  ERR_clear_error();
  return text;
}

absl::StatusOr<std::shared_ptr<const RedisTls>> RedisTls::Create(const RedisEndpoint& endpoint) {
  ERR_clear_error();
  auto tls = std::make_shared<RedisTls>();
  tls->context_.reset(SSL_CTX_new(TLS_client_method()));
  SSL_CTX* context = tls->context_.get();
  if (context == nullptr) return absl::InternalError(absl::StrCat("TLS: ", TakeTlsError()));
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (endpoint.ca_file.empty()) {
    if (SSL_CTX_set_default_verify_paths(context) != 1) return Unusable("ca_file", "(the system's)");
  } else if (SSL_CTX_load_verify_locations(context, endpoint.ca_file.c_str(), nullptr) != 1) {
    return Unusable("ca_file", endpoint.ca_file);
  }
  if (!endpoint.cert_file.empty()) {
    if (SSL_CTX_use_certificate_chain_file(context, endpoint.cert_file.c_str()) != 1) {
      return Unusable("cert_file", endpoint.cert_file);
    }
    if (SSL_CTX_use_PrivateKey_file(context, endpoint.key_file.c_str(), SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(context) != 1) {
      return Unusable("key_file", endpoint.key_file);
    }
  }
  return std::shared_ptr<const RedisTls>(std::move(tls));
}

absl::StatusOr<UniqueSsl> RedisTls::NewSession(int* fd, const std::string& host) const {
  ERR_clear_error();
  UniqueSsl ssl(SSL_new(context_.get()));
  BIO* bio = SocketMethod() == nullptr ? nullptr : BIO_new(SocketMethod());
  if (ssl == nullptr || bio == nullptr || !NamePeer(ssl.get(), host)) {
    BIO_free(bio);
    return absl::InternalError(absl::StrCat("TLS: ", TakeTlsError()));
  }
  BIO_set_data(bio, fd);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl.get(), bio, bio);
  SSL_set_connect_state(ssl.get());
  return ssl;
}

}  // namespace routing_replay::server
