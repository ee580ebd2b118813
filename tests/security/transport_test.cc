// Who gets a connection, against a real server.
#include "tests/security/guarded_server.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {
namespace {

using grpc::StatusCode;

const std::vector<TestToken> kTokens = {{.token = "known"}};

grpc::Status Ask(const std::shared_ptr<grpc::Channel>& channel) {
  v1::ServerInfo info;
  return v1::RoutingReplay::NewStub(channel)->GetServerInfo(NewCall("known").get(), {}, &info);
}

int ExitOf(std::vector<std::string> flags) {
  flags.insert(flags.begin(), RR_SERVER);
  auto process = Process::Start(flags);
  EXPECT_OK(process);
  const auto exit = (*process)->Wait(std::chrono::seconds(20));
  return exit.ok() ? *exit : -1;
}

TEST(TransportTest, PlaintextAndStrangersGetNoConnection) {
  GuardedServer server(kTokens);
  EXPECT_TRUE(Ask(server.NewChannel()).ok());
  EXPECT_EQ(Ask(server.NewChannel(grpc::InsecureChannelCredentials())).error_code(), StatusCode::UNAVAILABLE);
  // A client that trusts another authority does not talk to this server.
  const TestAuthority other;
  const auto mistrust = grpc::SslCredentials({.pem_root_certs = other.certificate()});
  EXPECT_EQ(Ask(server.NewChannel(mistrust)).error_code(), StatusCode::UNAVAILABLE);
}

TEST(TransportTest, ClientCertificatesAreDemandedWhereTheyAreAskedFor) {
  const TestAuthority clients;
  const ScratchDirectory directory;
  ReplaceFile(directory.path() + "/ca.crt", clients.certificate());
  GuardedServer server(kTokens, {"--tls-client-ca", directory.path() + "/ca.crt"});
  const auto with = [&](const TestIdentity& identity) {
    return server.NewChannel(grpc::SslCredentials({.pem_root_certs = server.authority().certificate(),
                                                   .pem_private_key = identity.key,
                                                   .pem_cert_chain = identity.certificate}));
  };
  EXPECT_TRUE(Ask(with(clients.Issue("URI:spiffe://example.org/rollout"))).ok());
  EXPECT_EQ(Ask(server.NewChannel()).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(Ask(with(server.authority().Issue("DNS:client"))).error_code(), StatusCode::UNAVAILABLE);
  // The certificate opens the connection; what is done on it still takes a token.
  v1::ServerInfo info;
  const auto stub = v1::RoutingReplay::NewStub(with(clients.Issue("DNS:client")));
  EXPECT_EQ(stub->GetServerInfo(NewCall("").get(), {}, &info).error_code(), StatusCode::UNAUTHENTICATED);
}

TEST(TransportTest, AListenerForOthersIsEncryptedOrMeantNotToBe) {
  EXPECT_EQ(ExitOf({"--listen", "0.0.0.0:0", "--check-config"}), 2);
  EXPECT_EQ(ExitOf({"--listen", "127.0.0.1:0", "[::]:0", "--check-config"}), 2);
  EXPECT_EQ(ExitOf({"--listen", "0.0.0.0:0", "--check-config", "--insecure"}), 0);
  const TestAuthority authority;
  const ScratchDirectory directory;
  const TestIdentity identity = authority.Issue(kLocalNames);
  ReplaceFile(directory.path() + "/crt", identity.certificate);
  ReplaceFile(directory.path() + "/key", identity.key);
  const std::vector<std::string> flags = {"--listen",
                                          "0.0.0.0:0",
                                          "--check-config",
                                          "--tls-cert",
                                          directory.path() + "/crt",
                                          "--tls-key",
                                          directory.path() + "/key"};
  EXPECT_EQ(ExitOf(flags), 0);
  ReplaceFile(directory.path() + "/key", authority.Issue(kLocalNames).key);
  EXPECT_EQ(ExitOf(flags), 2);
}

}  // namespace
}  // namespace routing_replay::testing
