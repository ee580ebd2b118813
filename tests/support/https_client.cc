#include "tests/support/https_client.h"

#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>

#include "proto/wire/security.h"

namespace routing_replay::testing {
namespace {

using BioPtr = std::unique_ptr<BIO, OpenSslFree<BIO_free_all>>;
using CertificatePtr = std::unique_ptr<X509, OpenSslFree<X509_free>>;
using ContextPtr = std::unique_ptr<SSL_CTX, OpenSslFree<SSL_CTX_free>>;

std::string ReadAll(BIO* from) {
  std::string all;
  char part[4096];
  for (int n; (n = BIO_read(from, part, sizeof(part))) > 0;) all.append(part, static_cast<size_t>(n));
  return all;
}

}  // namespace

struct HttpsConnection::Parts {
  ContextPtr context;
  BioPtr connection;  // Null if there is none.
};

HttpsConnection::HttpsConnection(const std::string& address, const std::string& authority)
    : parts_(std::make_unique<Parts>()) {
  const BioPtr pem(BIO_new_mem_buf(authority.data(), static_cast<int>(authority.size())));
  const CertificatePtr trusted(PEM_read_bio_X509(pem.get(), nullptr, nullptr, nullptr));
  parts_->context.reset(SSL_CTX_new(TLS_client_method()));
  X509_STORE_add_cert(SSL_CTX_get_cert_store(parts_->context.get()), trusted.get());
  SSL_CTX_set_verify(parts_->context.get(), SSL_VERIFY_PEER, nullptr);
  parts_->connection.reset(BIO_new_ssl_connect(parts_->context.get()));
  BIO_set_conn_hostname(parts_->connection.get(), address.c_str());
  if (BIO_do_connect(parts_->connection.get()) != 1) parts_->connection = nullptr;
}

HttpsConnection::~HttpsConnection() = default;

std::string HttpsConnection::certificate() const {
  if (parts_->connection == nullptr) return {};
  SSL* ssl = nullptr;
  BIO_get_ssl(parts_->connection.get(), &ssl);
  const CertificatePtr shown(SSL_get1_peer_certificate(ssl));
  const BioPtr memory(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(memory.get(), shown.get());
  return ReadAll(memory.get());
}

void HttpsConnection::Send(const std::string& bytes) const {
  if (parts_->connection != nullptr) BIO_puts(parts_->connection.get(), bytes.c_str());
}

std::string HttpsConnection::ReceiveAll() const {
  return parts_->connection == nullptr ? "" : ReadAll(parts_->connection.get());
}

bool HttpsConnection::IsClosed() const {
  if (parts_->connection == nullptr) return true;
  const auto socket = static_cast<int>(BIO_get_fd(parts_->connection.get(), nullptr));
  const timeval minute{.tv_sec = 60, .tv_usec = 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof(minute));
  char part[256];
  ssize_t n;
  do n = recv(socket, part, sizeof(part), 0);
  while (n > 0);
  return n == 0 || errno == ECONNRESET;
}

HttpsAnswer HttpsGet(const std::string& address, const std::string& path, const std::string& authority) {
  const HttpsConnection connection(address, authority);
  connection.Send("GET " + path + " HTTP/1.1\r\n\r\n");
  return {.certificate = connection.certificate(), .text = connection.ReceiveAll()};
}

}  // namespace routing_replay::testing
