#include "server/security/tls_files.h"

#include <fstream>

#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_certificates.h"

namespace routing_replay::server {
namespace {

using testing::TestAuthority;
using testing::TestIdentity;

class TlsFilesTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(directory_.path() + "/" + name) << text;
    return directory_.path() + "/" + name;
  }
  static void ExpectFault(const TlsFiles& files, const std::string& word) {
    const absl::Status status = CheckTlsFiles(files);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(word));
  }

  testing::ScratchDirectory directory_;
  const TestAuthority authority_;
};

TEST_F(TlsFilesTest, ACertificateItsKeyAndAnAuthority) {
  const TestIdentity identity = authority_.Issue(testing::kLocalNames);
  TlsFiles files{Write("crt", identity.certificate), Write("key", identity.key), ""};
  EXPECT_OK(CheckTlsFiles({}));
  EXPECT_OK(CheckTlsFiles(files));
  files.client_ca = Write("ca", authority_.certificate());
  EXPECT_OK(CheckTlsFiles(files));
  files.client_ca = Write("ca", "no certificate");
  ExpectFault(files, "--tls-client-ca");
}

TEST_F(TlsFilesTest, FaultsNameSettingAndFile) {
  const TestIdentity identity = authority_.Issue(testing::kLocalNames);
  const std::string certificate = Write("crt", identity.certificate);
  const std::string key = Write("key", identity.key);
  ExpectFault({certificate, Write("other", authority_.Issue("DNS:other").key)}, "is not the key of the certificate");
  ExpectFault({key, key}, "--tls-cert: " + key + " holds no certificate");
  ExpectFault({certificate, certificate}, "--tls-key: " + certificate + " holds no private key");
  ExpectFault({certificate, directory_.path() + "/none"}, "--tls-key: cannot read");
  ExpectFault({certificate, ""}, "--tls-key: missing");
  ExpectFault({"", key}, "--tls-cert: missing");
}

TEST_F(TlsFilesTest, ExpiryIsTheCertificates) {
  const auto before = std::chrono::system_clock::now();
  const TestIdentity identity = authority_.Issue("DNS:a", std::chrono::hours(5));
  const TlsFiles files{Write("crt", identity.certificate + authority_.certificate()), Write("key", identity.key), ""};
  ASSERT_OK_AND_ASSIGN(const TlsTexts texts, ReadTlsFiles(files));
  EXPECT_LT(std::chrono::abs(texts.expires - before - std::chrono::hours(5)), std::chrono::minutes(5));
}

}  // namespace
}  // namespace routing_replay::server
