// Certificates for tests of TLS.
#ifndef TESTS_SUPPORT_REDIS_TEST_CERTIFICATES_H_
#define TESTS_SUPPORT_REDIS_TEST_CERTIFICATES_H_

#include <string>

#include "absl/status/statusor.h"

namespace routing_replay::testing {

struct TestCertificates {
  std::string ca_file;    // An authority of its own,
  std::string cert_file;  // a certificate that it signed,
  std::string key_file;   // and its key.
};

// Writes the files into `directory`, which it makes. `name` is what the certificate is for: "DNS:localhost" or
// "IP:127.0.0.1".
absl::StatusOr<TestCertificates> MakeTestCertificates(const std::string& directory, const std::string& name);

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_REDIS_TEST_CERTIFICATES_H_
