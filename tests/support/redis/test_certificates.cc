#include "tests/support/redis/test_certificates.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"

namespace routing_replay::testing {
namespace {

constexpr long kDay = 24 * 60 * 60;

template <auto free>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    free(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using File = std::unique_ptr<FILE, Free<std::fclose>>;

bool AddExtension(X509* certificate, int id, const char* value) {
  const std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>> extension(
      X509V3_EXT_conf_nid(nullptr, nullptr, id, value));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

// Null if OpenSSL refuses something.
Certificate Make(const char* name, long serial, EVP_PKEY* key, const X509* issuer, EVP_PKEY* issuer_key, int extension,
                 const char* value) {
  Certificate made(X509_new());
  X509_set_version(made.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(made.get()), serial);
  X509_gmtime_adj(X509_getm_notBefore(made.get()), -kDay);
  X509_gmtime_adj(X509_getm_notAfter(made.get()), kDay);
  X509_set_pubkey(made.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(made.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
  X509_set_issuer_name(made.get(), X509_get_subject_name(issuer != nullptr ? issuer : made.get()));
  const bool good = AddExtension(made.get(), extension, value) && X509_sign(made.get(), issuer_key, EVP_sha256()) > 0;
  return good ? std::move(made) : nullptr;
}

bool Write(const std::string& path, X509* certificate) {
  const File file(std::fopen(path.c_str(), "w"));
  return file != nullptr && PEM_write_X509(file.get(), certificate) == 1;
}

bool Write(const std::string& path, EVP_PKEY* key) {
  const File file(std::fopen(path.c_str(), "w"));
  return file != nullptr && PEM_write_PrivateKey(file.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1;
}

}  // namespace

absl::StatusOr<TestCertificates> MakeTestCertificates(const std::string& directory, const std::string& name) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const TestCertificates files{directory + "/ca.pem", directory + "/cert.pem", directory + "/key.pem"};
  const Key ca_key(EVP_EC_gen("P-256")), key(EVP_EC_gen("P-256"));
  const Certificate ca =
      Make("routing-replay test CA", 1, ca_key.get(), nullptr, ca_key.get(), NID_basic_constraints, "critical,CA:TRUE");
  if (ca == nullptr) return absl::InternalError("no CA certificate");
  const Certificate certificate =
      Make("routing-replay test", 2, key.get(), ca.get(), ca_key.get(), NID_subject_alt_name, name.c_str());
  if (certificate == nullptr) return absl::InternalError("no certificate");
  if (!Write(files.ca_file, ca.get()) || !Write(files.cert_file, certificate.get()) ||
      !Write(files.key_file, key.get())) {
    return absl::InternalError(absl::StrCat("cannot write into ", directory));
  }
  return files;
}

}  // namespace routing_replay::testing
