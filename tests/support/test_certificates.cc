#include "tests/support/test_certificates.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace routing_replay::testing {
namespace {

template <typename T>
T Must(T value) {
  if (value) return value;
  std::fputs("OpenSSL cannot make a certificate\n", stderr);
  std::abort();
}

template <typename Write>
std::string Pem(const Write& write) {
  BIO* bio = Must(BIO_new(BIO_s_mem()));
  Must(write(bio));
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(bio, &bytes);  // NOLINT: OpenSSL's type.
  std::string text(bytes, static_cast<size_t>(size));
  BIO_free(bio);
  return text;
}

std::string CertificatePem(X509* certificate) {
  return Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

void AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = Must(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  Must(X509_add_ext(certificate, extension, -1));
  X509_EXTENSION_free(extension);
}

// Not yet signed.
X509* NewCertificate(EVP_PKEY* key, const std::string& name, std::chrono::seconds valid_for) {
  X509* certificate = Must(X509_new());
  Must(X509_set_version(certificate, X509_VERSION_3));
  uint64_t serial = 0;
  Must(RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial)) == 1);
  Must(ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate), serial >> 1));
  Must(X509_gmtime_adj(X509_getm_notBefore(certificate), -60));
  Must(X509_gmtime_adj(X509_getm_notAfter(certificate), valid_for.count()));
  Must(X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                                  reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0));
  Must(X509_set_pubkey(certificate, key));
  return certificate;
}

}  // namespace

struct TestAuthority::Impl {
  EVP_PKEY* key;
  X509* certificate;
  std::string pem;
};

TestAuthority::TestAuthority() : TestAuthority(nullptr, std::chrono::hours(1)) {}

TestAuthority::TestAuthority(const TestAuthority* issuer, std::chrono::seconds valid_for)
    : impl_(std::make_unique<Impl>()) {
  impl_->key = Must(EVP_EC_gen("P-256"));
  // Distinct names, because a verifier might confuse two authorities with the same name.
  uint64_t number = 0;
  Must(RAND_bytes(reinterpret_cast<unsigned char*>(&number), sizeof(number)) == 1);
  impl_->certificate = NewCertificate(impl_->key, absl::StrCat("test authority ", absl::Hex(number)), valid_for);
  const Impl& signer = issuer == nullptr ? *impl_ : *issuer->impl_;
  Must(X509_set_issuer_name(impl_->certificate, X509_get_subject_name(signer.certificate)));
  AddExtension(impl_->certificate, signer.certificate, NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(impl_->certificate, impl_->certificate, NID_subject_key_identifier, "hash");
  Must(X509_sign(impl_->certificate, signer.key, EVP_sha256()));
  impl_->pem = CertificatePem(impl_->certificate);
}

TestAuthority::TestAuthority(TestAuthority&&) noexcept = default;

TestAuthority::~TestAuthority() {
  if (impl_ == nullptr) return;
  X509_free(impl_->certificate);
  EVP_PKEY_free(impl_->key);
}

TestAuthority TestAuthority::Delegate(std::chrono::seconds valid_for) const { return {this, valid_for}; }

const std::string& TestAuthority::certificate() const { return impl_->pem; }

TestIdentity TestAuthority::Issue(const std::string& names, std::chrono::seconds valid_for) const {
  EVP_PKEY* key = Must(EVP_EC_gen("P-256"));
  X509* certificate = NewCertificate(key, "test", valid_for);
  Must(X509_set_issuer_name(certificate, X509_get_subject_name(impl_->certificate)));
  AddExtension(certificate, impl_->certificate, NID_subject_alt_name, names);
  Must(X509_sign(certificate, impl_->key, EVP_sha256()));
  TestIdentity identity{CertificatePem(certificate), Pem([&](BIO* bio) {
                          return PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
                        })};
  X509_free(certificate);
  EVP_PKEY_free(key);
  return identity;
}

absl::StatusOr<TestCertificates> MakeTestCertificates(const std::string& directory, const std::string& names) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const TestAuthority authority;
  const TestIdentity identity = authority.Issue(names);
  const TestCertificates files{directory + "/ca.pem", directory + "/cert.pem", directory + "/key.pem"};
  std::ofstream ca(files.ca_file), certificate(files.cert_file), key(files.key_file);
  ca << authority.certificate();
  certificate << identity.certificate;
  key << identity.key;
  if (ca.flush() && certificate.flush() && key.flush()) return files;
  return absl::InternalError(absl::StrCat("cannot write into ", directory));
}

}  // namespace routing_replay::testing
