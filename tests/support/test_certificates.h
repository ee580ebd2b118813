// Certificates for tests, made when they are needed: no key is in the repository.
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

// Signs certificates. Any failure ends the process: the tests that use it could not go on.
class TestAuthority {
 public:
  TestAuthority();
  TestAuthority(TestAuthority&&) noexcept;
  ~TestAuthority();

  // Of the authority itself.
  const std::string& certificate() const;
  // `names` as in OpenSSL's subjectAltName, for example "DNS:localhost,IP:127.0.0.1".
  TestIdentity Issue(const std::string& names, std::chrono::seconds valid_for = std::chrono::hours(1)) const;
  // One whose certificate this one signs: an intermediate authority.
  TestAuthority Delegate(std::chrono::seconds valid_for) const;

 private:
  struct Impl;
  // Null: it signs its own.
  TestAuthority(const TestAuthority* issuer, std::chrono::seconds valid_for);

  std::unique_ptr<Impl> impl_;
};

// The same as files.
struct TestCertificates {
  std::string ca_file;    // An authority of its own,
  std::string cert_file;  // a certificate that it signed,
  std::string key_file;   // and its key.
};

// Writes the files into `directory`, which it makes. `names` as for Issue.
absl::StatusOr<TestCertificates> MakeTestCertificates(const std::string& directory, const std::string& names);

// What a server on this machine shows.
inline constexpr char kLocalNames[] = "DNS:localhost,IP:127.0.0.1";

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_TEST_CERTIFICATES_H_
