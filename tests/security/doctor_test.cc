// rrctl doctor against a server with TLS and tokens: it names each problem and its fix.
#include "client/rrctl/doctor.h"

#include <gmock/gmock.h>

#include "tests/security/guarded_client.h"

namespace routing_replay::testing {

using namespace client;  // NOLINT(google-build-using-namespace)

namespace {

using ::testing::HasSubstr;

class DoctorTest : public ::testing::Test {
 protected:
  // Runs the checks of rrctl doctor. Returns the finding of each check by the name of the check.
  std::map<std::string, Finding> ExamineWith(const ClientFiles& files) const {
    ClientOptions client = files.Options(server_.endpoint());
    client.call_timeout = std::chrono::seconds(20);
    const auto findings = Examine(client);
    EXPECT_OK(findings);
    std::map<std::string, Finding> by_check;
    for (const Finding& finding : *findings) by_check[finding.check] = finding;
    return by_check;
  }

  const GuardedServer server_{std::vector<TestToken>{{.token = "all"}}};
  const std::string authority_ = server_.authority().certificate();
};

TEST_F(DoctorTest, AllIsWell) {
  const auto found = ExamineWith(ClientFiles(authority_, "all"));
  EXPECT_THAT(found.at("tls").what, HasSubstr("localhost"));
  EXPECT_EQ(found.at("tls").verdict, Verdict::kOk);
  EXPECT_EQ(found.at("service").verdict, Verdict::kOk);
}

TEST_F(DoctorTest, AnotherAuthority) {
  const TestAuthority other;
  const auto found = ExamineWith(ClientFiles(other.certificate(), "all"));
  EXPECT_EQ(found.at("tls").verdict, Verdict::kFail);
  EXPECT_THAT(found.at("tls").fix, HasSubstr("--cacert must hold the authority"));
  EXPECT_FALSE(found.contains("service"));
}

TEST_F(DoctorTest, PlaintextToAServerWithTls) {
  const auto found = ExamineWith(ClientFiles("", "all"));
  EXPECT_EQ(found.at("tls").verdict, Verdict::kFail);
  EXPECT_THAT(found.at("tls").fix, HasSubstr("--cacert"));
}

TEST_F(DoctorTest, AnUnknownToken) {
  const auto found = ExamineWith(ClientFiles(authority_, "nonesuch"));
  EXPECT_EQ(found.at("service").verdict, Verdict::kFail);
  EXPECT_THAT(found.at("service").what, HasSubstr("UNAUTHENTICATED"));
  EXPECT_THAT(found.at("service").fix, HasSubstr("--token-file"));
  EXPECT_FALSE(found.contains("version"));
}

TEST(DoctorTlsTest, AServerThatAsksForACertificate) {
  // A server needs the certificate of the clients' authority when it starts, so the authority of another server is
  // used.
  const GuardedServer first({{.token = "all"}});
  const std::string clients = first.path("clients");
  ReplaceFile(clients, first.authority().certificate());
  const GuardedServer server({{.token = "all"}}, {"--tls-client-ca", clients});
  ClientFiles files(server.authority().certificate(), "all");
  const auto examine = [&] {
    ClientOptions client = files.Options(server.endpoint());
    client.call_timeout = std::chrono::seconds(20);
    return Examine(client);
  };
  ASSERT_OK_AND_ASSIGN(const auto without, examine());
  EXPECT_EQ(without.back().check, "tls");
  EXPECT_THAT(without.back().fix, HasSubstr("--cert and --key"));
  files.SetIdentity(first.authority().Issue("URI:spiffe://example.org/worker"));
  ASSERT_OK_AND_ASSIGN(const auto with, examine());
  EXPECT_NE(ToDocument(with)["verdict"], "fail") << ToDocument(with).dump();
}

}  // namespace
}  // namespace routing_replay::testing
