#include "server/security/served_tls.h"

#include <fstream>

#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_certificates.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
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
    const absl::Status status = ReadTlsFiles(files).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(word));
  }

  testing::ScratchDirectory directory_;
  const TestAuthority authority_;
};

TEST_F(TlsFilesTest, ACertificateItsKeyAndAnAuthority) {
  const TestIdentity identity = authority_.Issue(testing::kLocalNames);
  TlsFiles files{Write("crt", identity.certificate), Write("key", identity.key), ""};
  EXPECT_OK(ReadTlsFiles({}));
  EXPECT_OK(ReadTlsFiles(files));
  files.client_ca = Write("ca", authority_.certificate());
  EXPECT_OK(ReadTlsFiles(files));
  files.client_ca = Write("ca", "no certificate");
  ExpectFault(files, "--tls-client-ca");
}

TEST_F(TlsFilesTest, FaultsNameSettingAndFile) {
  const TestIdentity identity = authority_.Issue(testing::kLocalNames);
  const std::string certificate = Write("crt", identity.certificate);
  const std::string key = Write("key", identity.key);
  ExpectFault({certificate, Write("other", authority_.Issue("DNS:other").key)}, "is not the key of the certificate");
  ExpectFault({key, key}, "--tls-cert: " + key + " holds no certificate");
  ExpectFault({certificate, certificate}, "--tls-key: " + certificate + " holds no PEM private key");
  ExpectFault({certificate, directory_.path() + "/none"}, "--tls-key: cannot read");
  ExpectFault({certificate, ""}, "--tls-key: must be given with --tls-cert");
  ExpectFault({"", key}, "--tls-cert: must be given with the other TLS settings");
}

TEST_F(TlsFilesTest, ExpiryIsTheCertificates) {
  const auto before = std::chrono::system_clock::now();
  const TestIdentity identity = authority_.Issue("DNS:a", std::chrono::hours(5));
  const TlsFiles files{Write("crt", identity.certificate + authority_.certificate()), Write("key", identity.key), ""};
  ASSERT_OK_AND_ASSIGN(const TlsTexts texts, ReadTlsFiles(files));
  EXPECT_LT(std::chrono::abs(texts.expires - before - std::chrono::hours(5)), std::chrono::minutes(5));
}

using testing::TestAuthority;
using testing::TestIdentity;

class ServedTlsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Show(authority_.Issue(testing::kLocalNames));
    Write(files_.client_ca, authority_.certificate());
    ASSERT_OK_AND_ASSIGN(served_, ServedTls::Create(files_));
  }
  void Show(const TestIdentity& identity) {
    Write(files_.certificate, identity.certificate);
    Write(files_.key, identity.key);
  }
  static void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const testing::ScratchDirectory directory_;
  const TlsFiles files_{directory_.path() + "/crt", directory_.path() + "/key", directory_.path() + "/ca"};
  const TestAuthority authority_;
  std::unique_ptr<ServedTls> served_;
};

TEST_F(ServedTlsTest, GoodFilesAreTaken) {
  ASSERT_OK_AND_ASSIGN(const bool changed, served_->Reload());
  EXPECT_FALSE(changed);
  const auto before = served_->texts();
  Show(authority_.Issue("DNS:other"));
  ASSERT_OK_AND_ASSIGN(const bool taken, served_->Reload());
  EXPECT_TRUE(taken);
  EXPECT_NE(served_->texts()->certificate, before->certificate);
}

TEST_F(ServedTlsTest, WhatIsNotWholeOrDoesNotFitIsNeverShown) {
  const TestIdentity next = authority_.Issue(testing::kLocalNames);
  const std::string two = next.certificate + authority_.certificate();
  const TlsTexts good = *served_->texts();
  const std::vector<std::pair<std::string, std::string>> faults = {
      {files_.certificate, ""},
      {files_.certificate, next.certificate.substr(0, next.certificate.size() / 2)},
      {files_.certificate, next.certificate},  // The key belongs to another certificate.
      {files_.certificate, two.substr(0, two.size() - 100)},
      {files_.key, ""},
      {files_.key, next.key},
      {files_.client_ca, ""},
      {files_.client_ca, "garbage"},
      {files_.client_ca, two.substr(0, two.size() - 100)}};
  for (const auto& [path, text] : faults) {
    const std::string before = Read(path);
    Write(path, text);
    EXPECT_EQ(served_->Reload().status().code(), absl::StatusCode::kInvalidArgument) << path << text;
    EXPECT_EQ(*served_->texts(), good);
    std::remove(path.c_str());
    EXPECT_FALSE(served_->Reload().ok());
    Write(path, before);
    ASSERT_OK(served_->Reload());
  }
}

}  // namespace
}  // namespace routing_replay::testing
