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
  ExpectFault({certificate, certificate}, "--tls-key: " + certificate + " holds no private key");
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
      {files_.certificate, next.certificate},  // Another one than the key's.
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

using testing::TestAuthority;
using testing::TestIdentity;

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

class ShiftedClock final : public Clock {
 public:
  Time Now() const override { return Clock::Real().Now(); }
  std::chrono::system_clock::time_point TimeOfDay() const override { return Clock::Real().TimeOfDay() + shift; }

  std::chrono::minutes shift{0};
};

class ClientCertificatesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const TestIdentity server = first_.Issue(testing::kLocalNames);
    Write("crt", server.certificate);
    Write("key", server.key);
    Write("ca", first_.certificate());
    ASSERT_OK_AND_ASSIGN(served_, ServedTls::Create({Path("crt"), Path("key"), Path("ca")}));
  }
  std::string Path(const std::string& name) const { return directory_.path() + "/" + name; }
  void Write(const std::string& name, const std::string& text) const { std::ofstream(Path(name)) << text; }

  const testing::ScratchDirectory directory_;
  const TestAuthority first_, second_;
  std::unique_ptr<ServedTls> served_;
};

TEST_F(ClientCertificatesTest, ThePresentAuthorityCounts) {
  const ClientCertificates certificates(*served_, Clock::Real());
  const std::string old = first_.Issue("DNS:a").certificate, other = second_.Issue("DNS:a").certificate;
  for (int twice = 0; twice < 2; ++twice) {
    EXPECT_OK(certificates.Check(old, old + first_.certificate()));
    EXPECT_OK(certificates.Check(old, ""));
    EXPECT_EQ(certificates.Check(other, other + first_.certificate()).code(), kUnavailable);
  }
  EXPECT_EQ(certificates.Check("no certificate", "").code(), kUnavailable);
  Write("ca", first_.certificate() + second_.certificate());
  ASSERT_OK(served_->Reload());
  EXPECT_OK(certificates.Check(old, old));
  EXPECT_OK(certificates.Check(other, other));
  Write("ca", second_.certificate());
  ASSERT_OK(served_->Reload());
  EXPECT_EQ(certificates.Check(old, old + first_.certificate()).code(), kUnavailable);
  EXPECT_OK(certificates.Check(other, other));
}

TEST_F(ClientCertificatesTest, ExpiredOnesAreNotGoodThoughTheyWere) {
  ShiftedClock clock;
  const ClientCertificates certificates(*served_, clock);
  const std::string brief = first_.Issue("DNS:a", std::chrono::minutes(10)).certificate;
  EXPECT_OK(certificates.Check(brief, brief));
  clock.shift = std::chrono::minutes(20);
  EXPECT_EQ(certificates.Check(brief, brief).code(), kUnavailable);
}

// A connection that resumes an earlier TLS session has no certificate chain. Its certificate is accepted nevertheless,
// because a good result of an earlier check is cached.
TEST_F(ClientCertificatesTest, OneThatComesWithoutItsChainIsNotShutOut) {
  const ClientCertificates certificates(*served_, Clock::Real());
  const TestAuthority between = first_.Delegate(std::chrono::hours(1));
  const std::string leaf = between.Issue("DNS:a").certificate;
  EXPECT_EQ(certificates.Check(leaf, leaf).code(), kUnavailable);
  EXPECT_OK(certificates.Check(leaf, leaf + between.certificate()));
  EXPECT_OK(certificates.Check(leaf, leaf));
}

TEST_F(ClientCertificatesTest, NoLongerGoodThanWhatIsBetween) {
  ShiftedClock clock;
  const ClientCertificates certificates(*served_, clock);
  const TestAuthority brief = first_.Delegate(std::chrono::minutes(10));
  const std::string leaf = brief.Issue("DNS:a").certificate, chain = leaf + brief.certificate();
  EXPECT_OK(certificates.Check(leaf, chain));
  clock.shift = std::chrono::minutes(20);
  EXPECT_EQ(certificates.Check(leaf, chain).code(), kUnavailable);
}

}  // namespace
}  // namespace routing_replay::testing
