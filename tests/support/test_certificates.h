// Certificates for tests, generated on demand, so that the repository contains no keys.
#ifndef TESTS_SUPPORT_TEST_CERTIFICATES_H_
#define TESTS_SUPPORT_TEST_CERTIFICATES_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace routing_replay::testing {

// A certificate and its key, PEM.
struct TestIdentity {
  std::string certificate;
  std::string key;
};

// Signs certificates. Any failure ends the process, because the tests cannot continue.
class TestAuthority {
 public:
  TestAuthority();
  TestAuthority(TestAuthority&&) noexcept;
  ~TestAuthority();

  // The authority's own certificate.
  const std::string& certificate() const;
  // `names` as in OpenSSL's subjectAltName, for example "DNS:localhost,IP:127.0.0.1".
  TestIdentity Issue(const std::string& names, std::chrono::seconds valid_for = std::chrono::hours(1)) const;
  // Issues an intermediate authority.
  TestAuthority Delegate(std::chrono::seconds valid_for) const;

 private:
  struct Impl;
  // Null: self-signed.
  TestAuthority(const TestAuthority* issuer, std::chrono::seconds valid_for);

  std::unique_ptr<Impl> impl_;
};

// Paths of PEM files.
struct TestCertificates {
  std::string ca_file;    // The authority's certificate,
  std::string cert_file;  // a certificate signed by it,
  std::string key_file;   // and its key.
};

// Makes an authority and a certificate for `names` (as for TestAuthority::Issue), and writes them into files in
// `directory`, which it creates.
absl::StatusOr<TestCertificates> MakeTestCertificates(const std::string& directory, const std::string& names);

// Names in the certificate of a server on this machine.
inline constexpr char kLocalNames[] = "DNS:localhost,IP:127.0.0.1";

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_TEST_CERTIFICATES_H_
