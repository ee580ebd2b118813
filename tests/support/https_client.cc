#include "tests/support/https_client.h"

#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <memory>

namespace routing_replay::testing {
namespace {

template <auto free_function>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    free_function(object);
  }
};
using BioPtr = std::unique_ptr<BIO, Free<BIO_free_all>>;
using CertificatePtr = std::unique_ptr<X509, Free<X509_free>>;
using ContextPtr = std::unique_ptr<SSL_CTX, Free<SSL_CTX_free>>;

std::string ReadAll(BIO* from) {
  std::string all;
  char part[4096];
  for (int n; (n = BIO_read(from, part, sizeof(part))) > 0;) all.append(part, static_cast<size_t>(n));
  return all;
}

}  // namespace

HttpsAnswer HttpsGet(const std::string& address, const std::string& path, const std::string& authority) {
  const BioPtr pem(BIO_new_mem_buf(authority.data(), static_cast<int>(authority.size())));
  const CertificatePtr trusted(PEM_read_bio_X509(pem.get(), nullptr, nullptr, nullptr));
  const ContextPtr context(SSL_CTX_new(TLS_client_method()));
  X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), trusted.get());
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  const BioPtr connection(BIO_new_ssl_connect(context.get()));
  BIO_set_conn_hostname(connection.get(), address.c_str());
  if (BIO_do_connect(connection.get()) != 1) return {};
  SSL* ssl = nullptr;
  BIO_get_ssl(connection.get(), &ssl);
  const CertificatePtr shown(SSL_get1_peer_certificate(ssl));
  const BioPtr memory(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(memory.get(), shown.get());
  BIO_puts(connection.get(), ("GET " + path + " HTTP/1.1\r\n\r\n").c_str());
  return {.certificate = ReadAll(memory.get()), .text = ReadAll(connection.get())};
}

}  // namespace routing_replay::testing
