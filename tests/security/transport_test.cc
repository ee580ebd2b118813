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

// When the server stops trusting the authority of a client's certificate, calls of every kind fail on the connection
// that is open already: new calls and those in flight.
TEST_F(MutualTest, ACertificateThatWasTakenBackFailsOnTheConnectionThatItOpened) {
  Start();
  const auto connection = With(client_);
  const auto stub = v1::RoutingReplay::NewStub(connection);
  ASSERT_TRUE(OpenRun(*stub, "known", "run").ok());
  const auto append_call = NewCall("known"), sending_call = NewCall("known"), waiting_call = NewCall("known");
  const auto stream = stub->Append(append_call.get());
  v1::AppendRequest ask;
  ask.set_run("run");
  ask.set_want_bytes(100);
  v1::AppendResponse answer;
  ASSERT_TRUE(stream->Write(ask) && stream->Read(&answer));
  v1::AppendAck ack;
  ASSERT_TRUE(stub->Put(NewCall("known").get(), OneAppend("run", "long", 1 << 20), &ack).ok());
  v1::AppendRequest later = OneAppend("run", "later", 3);
  ASSERT_TRUE(stub->Put(NewCall("known").get(), later, &ack).ok());
  // `all` is a read that sends for a long time, because its reader is slow; `wait` is a read that waits for rows.
  v1::ReadRequest all, wait;
  for (v1::ReadRequest* request : {&all, &wait}) request->set_run("run");
  for (int i = 0; i < 200; ++i) all.add_samples()->set_sample("long");
  wait.set_wait(true);
  wait.add_samples()->set_sample("later");
  wait.mutable_samples(0)->set_num_tokens(7);
  const auto sending = stub->Read(sending_call.get(), all), waiting = stub->Read(waiting_call.get(), wait);
  v1::ReadResponse rows;
  ASSERT_TRUE(sending->Read(&rows));
  v1::ServerInfo info;
  do {
    ASSERT_TRUE(stub->GetServerInfo(NewCall("known").get(), {}, &info).ok());
  } while ((*info.mutable_counters())["routing_replay_reads_total"] < 2);

  const TestAuthority next;
  const TestIdentity good = next.Issue("DNS:client");
  SetAuthorities(next.certificate());
  Await([&] { return Ask(connection).error_code() == StatusCode::UNAVAILABLE; });
  for (const AnyCall& call : EveryCall()) {
    const grpc::Status status = call.make(*stub, *NewCall("known"), "run");
    EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE) << call.name << " " << status.error_message();
  }
  stream->Write(OneAppend("run", "sample", 3));
  EXPECT_FALSE(stream->Read(&answer));
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::UNAVAILABLE);
  while (sending->Read(&rows)) {
  }
  EXPECT_EQ(sending->Finish().error_code(), StatusCode::UNAVAILABLE);
  Await([&] { return Ask(With(good)).ok(); });
  const auto others = v1::RoutingReplay::NewStub(With(good));
  later.mutable_append()->set_row_start(3);
  ASSERT_TRUE(others->Put(NewCall("known").get(), later, &ack).ok());
  EXPECT_FALSE(waiting->Read(&rows)) << rows.ShortDebugString().substr(0, 300);
  EXPECT_EQ(waiting->Finish().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(connection->GetState(false), GRPC_CHANNEL_READY);  // It is still the same connection.

  SetAuthorities(clients_.certificate());
  Await([&] { return Ask(connection).ok(); });
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
