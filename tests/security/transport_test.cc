// Who may connect to a real server, and for how long.
#include <sys/stat.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/security/guarded_server.h"
#include "tests/security/raw_socket.h"
#include "tests/support/https_client.h"
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
  // A client that trusts only another authority must not talk to this server.
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
  // The certificate allows the connection; calls on it still need a token.
  v1::ServerInfo info;
  const auto stub = v1::RoutingReplay::NewStub(with(clients.Issue("DNS:client")));
  EXPECT_EQ(stub->GetServerInfo(NewCall("").get(), {}, &info).error_code(), StatusCode::UNAUTHENTICATED);
}

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A server that asks for certificates of clients, and one such client.
class MutualTest : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& more = {}) {
    SetAuthorities(clients_.certificate());
    ReplaceFile(program(), absl::StrCat("#!/bin/sh\nexec ", RR_SERVER, " \"$@\" 2>", log(), "\n"));
    ASSERT_EQ(chmod(program().c_str(), 0700), 0);
    std::vector<std::string> flags = {"--tls-client-ca", client_ca()};
    flags.insert(flags.end(), more.begin(), more.end());
    server_ = std::make_unique<GuardedServer>(kTokens, flags, true, program());
  }
  std::string client_ca() const { return directory_.path() + "/ca.crt"; }
  std::string program() const { return directory_.path() + "/server"; }
  std::string log() const { return directory_.path() + "/log"; }
  void SetAuthorities(const std::string& pem) const { ReplaceFile(client_ca(), pem); }

  std::shared_ptr<grpc::Channel> With(const TestIdentity& identity) const {
    return server_->NewChannel(grpc::SslCredentials({.pem_root_certs = server_->authority().certificate(),
                                                     .pem_private_key = identity.key,
                                                     .pem_cert_chain = identity.certificate}));
  }
  // Returns how many times the server has found its certificate files invalid.
  uint64_t Failures() const {
    v1::ServerInfo info;
    const auto stub = v1::RoutingReplay::NewStub(With(client_));
    EXPECT_TRUE(stub->GetServerInfo(NewCall("known").get(), {}, &info).ok());
    return (*info.mutable_counters())["routing_replay_tls_reload_failures_total"];
  }

  const TestAuthority clients_;
  const ScratchDirectory directory_;
  const TestIdentity client_ = clients_.Issue("DNS:client");
  std::unique_ptr<GuardedServer> server_;
};

// Expiry of the presented certificate, as the operations port shows it.
int64_t ExpiryOf(const HttpsAnswer& metrics) {
  const std::string name = "\nrouting_replay_certificate_expiry_timestamp_seconds ";
  const size_t at = metrics.text.find(name);
  return at == std::string::npos ? 0 : static_cast<int64_t>(std::stod(metrics.text.substr(at + name.size())));
}

TEST_F(MutualTest, FilesThatAreNotGoodAreNotTaken) {
  const std::string operations = FreeAddress();
  Start({"--operations-listen", operations});
  const auto metrics = [&](const TestAuthority& authority) {
    return HttpsGet(operations, "/metrics", authority.certificate());
  };
  const std::string crt = server_->path("server.crt"), key = server_->path("server.key");
  const std::string shown = TextOf(crt);
  const int64_t expiry = ExpiryOf(metrics(server_->authority()));
  EXPECT_GT(expiry, 0);
  const TestIdentity other = server_->authority().Issue(kLocalNames, std::chrono::hours(5));
  for (const auto& [path, text] : std::vector<std::pair<std::string, std::string>>{{crt, ""},
                                                                                   {key, ""},
                                                                                   {crt, shown.substr(0, 300)},
                                                                                   {crt, other.certificate},
                                                                                   {key, other.key},
                                                                                   {client_ca(), "garbage"}}) {
    const std::string before = TextOf(path);
    const uint64_t failures = Failures();
    std::ofstream(path) << text;  // Overwrites the file in place, as `cp` does.
    // Each request for the server's counters opens a connection.
    Await([&] { return Failures() >= failures + 2; });
    const HttpsAnswer page = metrics(server_->authority());
    EXPECT_EQ(page.certificate, shown);
    EXPECT_EQ(ExpiryOf(page), expiry);  // The presented certificate counts, not the one in the file.
    std::ofstream(path) << before;
  }
  std::remove(key.c_str());
  const uint64_t failures = Failures();
  Await([&] { return Failures() >= failures + 2; });
  EXPECT_THAT(TextOf(log()), ::testing::HasSubstr("the previous certificates stay in use: --tls-key: "));
  // Valid ones are accepted.
  const TestAuthority next;
  server_->SetIdentity(next.Issue(kLocalNames, std::chrono::hours(5)));
  Await([&] {
    return Ask(server_->NewChannel(grpc::SslCredentials({.pem_root_certs = next.certificate(),
                                                         .pem_private_key = client_.key,
                                                         .pem_cert_chain = client_.certificate})))
        .ok();
  });
  EXPECT_GT(ExpiryOf(metrics(next)), expiry + 3 * 3600);
}

// The permissions of the socket do not depend on the umask of the process that starts the server.
TEST(TransportTest, ASocketIsForUserAndGroup) {
  const ScratchDirectory directory;
  const std::string path = directory.path() + "/socket";
  const mode_t before = umask(0);
  const GuardedServer server(kTokens, {"--listen", "unix:" + path}, false);
  umask(before);
  struct stat status;
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0770u);
}

TEST(TransportTest, AListenerForOthersIsEncryptedOrMeantNotToBe) {
  EXPECT_EQ(ExitOf({"--listen", "0.0.0.0:0", "--check-config"}), 2);
  EXPECT_EQ(ExitOf({"--listen", "127.0.0.1:0", "[::]:0", "--check-config"}), 2);
  EXPECT_EQ(ExitOf({"--listen", "0.0.0.0:0", "--check-config", "--insecure"}), 0);
  // The server's health is not secret.
  EXPECT_EQ(ExitOf({"--health-listen", "0.0.0.0:0", "--check-config"}), 0);
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
