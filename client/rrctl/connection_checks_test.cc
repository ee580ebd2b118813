#include "client/rrctl/doctor.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <signal.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/support/test_certificates.h"

namespace routing_replay::client {
namespace {

using ::testing::HasSubstr;
using testing::TestAuthority;
using testing::TestIdentity;

constexpr std::chrono::milliseconds kTimeout = std::chrono::seconds(20);

// A listener on a free port of the loopback interface that accepts nothing; up to `backlog` connections wait.
class Listener {
 public:
  explicit Listener(int backlog = 8) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(socket_.descriptor(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(socket_.descriptor(), backlog), 0);
    getsockname(socket_.descriptor(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  int descriptor() const { return socket_.descriptor(); }
  ServerAddress server() const {
    return {.endpoint = absl::StrCat("127.0.0.1:", port_), .host = "127.0.0.1", .port = absl::StrCat(port_)};
  }

 private:
  Socket socket_;
  int port_ = 0;
};

// Accepts one connection and answers it with TLS if it has an `identity`, or else with bytes that are no TLS.
class Answerer {
 public:
  explicit Answerer(const TestIdentity* identity, const TestAuthority* clients = nullptr)
      : thread_([this, identity, clients] { Serve(identity, clients); }) {}
  ~Answerer() { thread_.join(); }
  ServerAddress server() const { return listener_.server(); }

 private:
  void Serve(const TestIdentity* identity, const TestAuthority* clients) {
    signal(SIGPIPE, SIG_IGN);
    const Socket socket(accept(listener_.descriptor(), nullptr, nullptr));
    if (identity == nullptr) {
      EXPECT_GT(write(socket.descriptor(), "hello there, this is no TLS\n", 28), 0);
      return;
    }
    SSL_CTX* context = SSL_CTX_new(TLS_server_method());
    BIO* certificate = BIO_new_mem_buf(identity->certificate.data(), -1);
    X509* own = PEM_read_bio_X509(certificate, nullptr, nullptr, nullptr);
    BIO* key_text = BIO_new_mem_buf(identity->key.data(), -1);
    EVP_PKEY* key = PEM_read_bio_PrivateKey(key_text, nullptr, nullptr, nullptr);
    SSL_CTX_use_certificate(context, own);
    SSL_CTX_use_PrivateKey(context, key);
    if (clients != nullptr) SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    SSL* connection = SSL_new(context);
    SSL_set_fd(connection, socket.descriptor());
    if (SSL_accept(connection) == 1) SSL_write(connection, "x", 1);
    SSL_shutdown(connection);
    SSL_free(connection);
    SSL_CTX_free(context);
    X509_free(own);
    EVP_PKEY_free(key);
    BIO_free(certificate);
    BIO_free(key_text);
  }

  const Listener listener_;
  std::thread thread_;
};

Finding Tls(const ServerAddress& server, const ChannelKeys& keys) {
  std::vector<SocketAddress> addresses;
  EXPECT_EQ(CheckName(server, addresses).verdict, Verdict::kOk);
  return CheckTls(server, addresses.front(), kTimeout, keys);
}

TEST(NameTest, WhatDoesNotResolve) {
  std::vector<SocketAddress> addresses;
  const Finding finding = CheckName({.endpoint = "x.invalid:1", .host = "x.invalid", .port = "1"}, addresses);
  EXPECT_EQ(finding.verdict, Verdict::kFail);
  EXPECT_THAT(finding.what, HasSubstr("x.invalid has no address"));
  EXPECT_TRUE(addresses.empty());
}

TEST(ConnectTest, RefusedAndSilentAreApart) {
  std::vector<SocketAddress> addresses, reached;
  {
    const Listener gone;
    CheckName(gone.server(), addresses);
  }
  const Finding refused = CheckConnect(addresses, kTimeout, reached);
  EXPECT_EQ(refused.verdict, Verdict::kFail);
  EXPECT_THAT(refused.what, HasSubstr("refused"));
  EXPECT_THAT(refused.fix, HasSubstr("start the server"));

  // A listener whose queue is full does not answer new connections. To the client this looks like a firewall that drops
  // packets.
  const Listener full(0);
  CheckName(full.server(), addresses);
  std::vector<Socket> waiting;
  for (int i = 0; i < 4; ++i) {
    auto socket = ConnectTo(addresses.front(), std::chrono::milliseconds(100));
    if (socket.ok()) waiting.push_back(*std::move(socket));
  }
  const Finding silent = CheckConnect(addresses, std::chrono::milliseconds(100), reached);
  EXPECT_EQ(silent.verdict, Verdict::kFail);
  EXPECT_THAT(silent.fix, HasSubstr("firewall"));
  EXPECT_TRUE(reached.empty());
}

TEST(ConnectTest, OneAddressOfTwoIsAWarning) {
  std::vector<SocketAddress> one, other, reached;
  const Listener listener;
  CheckName(listener.server(), one);
  {
    const Listener gone;
    CheckName(gone.server(), other);
  }
  one.push_back(other.front());
  const Finding finding = CheckConnect(one, kTimeout, reached);
  EXPECT_EQ(finding.verdict, Verdict::kWarn);
  EXPECT_EQ(reached.size(), 1u);
}

TEST(TlsTest, ACertificateThatIsTrusted) {
  const TestAuthority authority;
  const TestIdentity identity = authority.Issue(testing::kLocalNames);
  const Answerer server(&identity);
  const Finding finding =
      Tls(server.server(), ChannelKeys{.encrypted = true, .root_certificates = authority.certificate()});
  EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.what;
  EXPECT_THAT(finding.what, HasSubstr("localhost"));
}

TEST(TlsTest, AnotherAuthorityAnotherName) {
  const TestAuthority authority, other;
  const TestIdentity identity = authority.Issue("DNS:elsewhere");
  const ChannelKeys trusted{.encrypted = true, .root_certificates = authority.certificate()};
  {
    const Answerer server(&identity);
    const Finding finding =
        Tls(server.server(),
            ChannelKeys{.encrypted = true, .root_certificates = other.certificate(), .server_name = "elsewhere"});
    EXPECT_EQ(finding.verdict, Verdict::kFail);
    EXPECT_THAT(finding.fix, HasSubstr("--cacert must hold the authority"));
  }
  {
    const Answerer server(&identity);
    const Finding finding = Tls(server.server(), trusted);
    EXPECT_EQ(finding.verdict, Verdict::kFail);
    EXPECT_THAT(finding.fix, HasSubstr("--server-name"));
    EXPECT_THAT(finding.fix, HasSubstr("elsewhere"));
  }
}

TEST(TlsTest, AClientsCertificateIsAskedFor) {
  const TestAuthority authority;
  const TestIdentity identity = authority.Issue(testing::kLocalNames);
  const Answerer server(&identity, &authority);
  const Finding finding =
      Tls(server.server(), ChannelKeys{.encrypted = true, .root_certificates = authority.certificate()});
  EXPECT_EQ(finding.verdict, Verdict::kFail);
  EXPECT_THAT(finding.fix, HasSubstr("--cert and --key")) << finding.what;
}

TEST(TlsTest, OneSideAloneSpeaksIt) {
  const TestAuthority authority;
  const TestIdentity identity = authority.Issue(testing::kLocalNames);
  {
    const Answerer server(&identity);
    const Finding finding = Tls(server.server(), {});
    EXPECT_EQ(finding.verdict, Verdict::kFail);
    EXPECT_THAT(finding.fix, HasSubstr("--cacert"));
  }
  {
    const Answerer server(nullptr);
    EXPECT_EQ(Tls(server.server(), {}).verdict, Verdict::kOk);
  }
  {
    const Answerer server(nullptr);
    const Finding finding =
        Tls(server.server(), ChannelKeys{.encrypted = true, .root_certificates = authority.certificate()});
    EXPECT_EQ(finding.verdict, Verdict::kFail);
    EXPECT_THAT(finding.fix, HasSubstr("plaintext"));
  }
  {
    const Answerer server(nullptr);
    EXPECT_THAT(Tls(server.server(), ChannelKeys{.encrypted = true, .root_certificates = "no PEM"}).what,
                HasSubstr("cacert"));
  }
}

}  // namespace
}  // namespace routing_replay::client
