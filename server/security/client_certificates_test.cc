#include "server/security/client_certificates.h"

#include <fstream>

#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_certificates.h"

namespace routing_replay::server {
namespace {

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

// As of a connection that goes on with the TLS session of an earlier one.
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
}  // namespace routing_replay::server
