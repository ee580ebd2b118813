#include "proto/wire/tls/tls_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <numeric>
#include <random>
#include <thread>

#include "tests/support/status_matchers.h"
#include "tests/support/test_certificates.h"

namespace routing_replay {
namespace {

using ::testing::HasSubstr;
using testing::kLocalNames;
using testing::TestAuthority;
using testing::TestIdentity;

using Stream = std::unique_ptr<TlsStream>;
using Bytes = std::vector<uint8_t>;

std::array<int, 2> SocketPair() {
  std::array<int, 2> ends;
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  return ends;
}

std::vector<iovec> Pieces(absl::Span<const Bytes> bytes) {
  std::vector<iovec> pieces;
  for (const Bytes& piece : bytes) pieces.push_back({const_cast<uint8_t*>(piece.data()), piece.size()});
  return pieces;
}

// Moves past the first `bytes` bytes of `pieces`.
void Pass(std::vector<iovec>& pieces, size_t bytes) {
  while (!pieces.empty() && bytes >= pieces.front().iov_len) {
    bytes -= pieces.front().iov_len;
    pieces.erase(pieces.begin());
  }
  if (bytes == 0) return;
  pieces.front().iov_base = static_cast<uint8_t*>(pieces.front().iov_base) + bytes;
  pieces.front().iov_len -= bytes;
}

// Sends `bytes` and receives them in pieces of other sizes. Returns the first error of either end.
absl::Status Pass(TlsStream& from, TlsStream& to, absl::Span<const Bytes> bytes, size_t taken_at_once) {
  Bytes all;
  for (const Bytes& piece : bytes) all.insert(all.end(), piece.begin(), piece.end());
  Bytes came(all.size());
  std::vector<iovec> left = Pieces(bytes);
  for (size_t at = 0; at < came.size();) {
    if (!left.empty()) {
      const auto sent = from.Write(left);
      // Prefer the error of the receiving end.
      if (!sent.ok()) return sent.status();
      Pass(left, *sent);
    }
    iovec space{came.data() + at, std::min(taken_at_once, came.size() - at)};
    const auto some = to.Read({&space, 1});
    if (!some.ok()) return some.status();
    at += *some;
    if (*some > 0) continue;
    EXPECT_FALSE(to.HasBytes());
    // Lets the sender continue its part of the handshake.
    if (left.empty()) from.Read({}).IgnoreError();
  }
  EXPECT_TRUE(came == all);
  return absl::OkStatus();
}

class TlsStreamTest : public ::testing::Test {
 protected:
  static TlsContext Server(const TestIdentity& identity, const std::string& client_authorities = "") {
    return *ServerTlsContext(identity.certificate, identity.key, client_authorities);
  }
  static TlsContext Client(const TestAuthority& authority, const TestIdentity& identity = {}) {
    return *ClientTlsContext(identity.certificate, identity.key, authority.certificate());
  }
  void Connect(const TlsContext& server, const TlsContext& client, const std::string& name = "localhost") {
    const auto ends = SocketPair();
    server_ = TlsStream::Accept(server, ends[0]);
    client_ = TlsStream::Connect(client, ends[1], name);
  }
  // Sends bytes in both directions.
  absl::Status Talk() {
    absl::Status status = Pass(*client_, *server_, {{1, 2, 3}}, 2);
    status.Update(Pass(*server_, *client_, {{4}, {5, 6}}, 9));
    return status;
  }

  const TestAuthority authority_;
  Stream server_, client_;
};

TEST_F(TlsStreamTest, BytesComeAsTheyWereSent) {
  std::mt19937 random(1);
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    const TlsContext client = Client(authority_);
    SSL_CTX_set_max_proto_version(client.get(), version);
    Connect(Server(authority_.Issue(kLocalNames)), client);
    for (int i = 0; i < 20; ++i) {
      std::vector<Bytes> pieces(1 + random() % 5);
      for (Bytes& piece : pieces) {
        constexpr size_t kSizes[] = {0, 1, 16, 300, 16 << 10, (16 << 10) + 1, 100'000, 1 << 20};
        piece.resize(kSizes[random() % std::size(kSizes)]);
        for (uint8_t& byte : piece) byte = static_cast<uint8_t>(random());
      }
      const size_t taken_at_once = random() % 2 == 0 ? 1 << 22 : 5000 + random() % 50'000;
      ASSERT_OK(i % 2 == 0 ? Pass(*client_, *server_, pieces, taken_at_once)
                           : Pass(*server_, *client_, pieces, taken_at_once));
    }
  }
}

TEST_F(TlsStreamTest, TheServerMustHaveTheName) {
  const TlsContext server = Server(authority_.Issue("DNS:localhost,DNS:*.example.org,IP:127.0.0.1,IP:::1"));
  for (const char* name : {"localhost", "127.0.0.1", "::1", "a.example.org"}) {
    Connect(server, Client(authority_), name);
    EXPECT_OK(Talk()) << name;
  }
  for (const char* name : {"elsewhere", "127.0.0.2", "example.org", "a.b.example.org", ""}) {
    Connect(server, Client(authority_), name);
    EXPECT_FALSE(Talk().ok()) << name;
  }
  Connect(server, Client(authority_), "elsewhere");
  EXPECT_EQ(Talk(), absl::UnavailableError("TLS: certificate: hostname mismatch"));
}

TEST_F(TlsStreamTest, TheServerMustBeOfAnAuthority) {
  const TestAuthority other;
  Connect(Server(other.Issue(kLocalNames)), Client(authority_));
  EXPECT_THAT(Talk().message(), HasSubstr("certificate: "));
  Connect(Server(authority_.Issue(kLocalNames, std::chrono::seconds(-1))), Client(authority_));
  EXPECT_EQ(Talk(), absl::UnavailableError("TLS: certificate: certificate has expired"));
  // A certificate that is not a root is trusted as well if it is in the authorities.
  const TestAuthority between = authority_.Delegate(std::chrono::hours(1));
  Connect(Server(between.Issue(kLocalNames)), Client(between));
  EXPECT_OK(Talk());
  TestIdentity chained = between.Issue(kLocalNames);
  Connect(Server(chained), Client(authority_));
  EXPECT_FALSE(Talk().ok());
  chained.certificate += between.certificate();
  Connect(Server(chained), Client(authority_));
  EXPECT_OK(Talk());
}

TEST_F(TlsStreamTest, AClientShowsACertificateWhereItIsAskedFor) {
  const TestAuthority clients, other;
  const TlsContext server = Server(authority_.Issue(kLocalNames), clients.certificate());
  Connect(server, Client(authority_, clients.Issue("URI:spiffe://example.org/rank,DNS:worker,IP:10.0.0.1")));
  ASSERT_OK(Talk());
  EXPECT_EQ(server_->peer_names(), "spiffe://example.org/rank worker 10.0.0.1");
  for (const TestIdentity& identity :
       {TestIdentity{}, other.Issue("DNS:worker"), clients.Issue("DNS:worker", std::chrono::seconds(-1))}) {
    Connect(server, Client(authority_, identity));
    EXPECT_THAT(Talk().message(), HasSubstr("certificate")) << identity.certificate;
  }
  // If clients are not asked for certificates, none is presented.
  Connect(Server(authority_.Issue(kLocalNames)), Client(authority_, clients.Issue("DNS:worker")));
  ASSERT_OK(Talk());
  EXPECT_EQ(server_->peer_names(), "");
}

TEST_F(TlsStreamTest, WhatIsNoTlsIsToldAndSoIsAnEnd) {
  const TlsContext server = Server(authority_.Issue(kLocalNames));
  std::array<uint8_t, 64> room;
  const iovec space{room.data(), room.size()};
  for (const std::string& said :
       {std::string(64, '\1'), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(64, '\x16')}) {
    const auto ends = SocketPair();
    const Stream stream = TlsStream::Accept(server, ends[0]);
    ASSERT_EQ(write(ends[1], said.data(), said.size()), static_cast<ssize_t>(said.size()));
    EXPECT_THAT(stream->Read({&space, 1}).status().message(), HasSubstr("TLS: ")) << said;
    EXPECT_FALSE(stream->Read({&space, 1}).ok());
    close(ends[1]);
  }
  // An incomplete ClientHello.
  const auto ends = SocketPair();
  const Stream stream = TlsStream::Accept(server, ends[0]);
  ASSERT_EQ(write(ends[1], "\x16\x03\x01\x02\x00\x01", 6), 6);
  EXPECT_EQ(*stream->Read({&space, 1}), 0u);
  EXPECT_EQ(stream->read_events(), POLLIN);
  close(ends[1]);
  EXPECT_EQ(stream->Read({&space, 1}).status(), absl::UnavailableError("the peer closed the connection"));
}

// Writing to a closed connection returns an error. The process is not killed by SIGPIPE, even with the default handling
// of that signal.
TEST_F(TlsStreamTest, WritingToNobodyIsAnError) {
  Connect(Server(authority_.Issue(kLocalNames)), Client(authority_));
  ASSERT_OK(Talk());
  client_ = nullptr;
  ASSERT_EQ(std::signal(SIGPIPE, SIG_DFL), SIG_DFL);
  const Bytes bytes(1 << 20);
  const iovec piece{const_cast<uint8_t*>(bytes.data()), bytes.size()};
  EXPECT_EQ(server_->Write({&piece, 1}).status(), absl::UnavailableError("Broken pipe"));
  sigset_t pending;
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
}

// The peer sends thousands of TLS key updates before its first byte of data. They must not keep one Read busy: each
// Read returns after a while. Updates that ask for an answer still get one.
TEST_F(TlsStreamTest, NewKeysHoldNobody) {
  const auto ends = SocketPair();
  const TlsContext context = Client(authority_);
  const Stream server = TlsStream::Accept(Server(authority_.Issue(kLocalNames)), ends[0]);
  std::thread peer([&] {
    const std::unique_ptr<SSL, OpenSslFree<SSL_free>> ssl(SSL_new(context.get()));
    SSL_set_mode(ssl.get(), SSL_MODE_AUTO_RETRY);
    SSL_set_fd(ssl.get(), ends[1]);
    EXPECT_EQ(SSL_connect(ssl.get()), 1);
    for (int i = 0; i < 5000; ++i) {
      SSL_key_update(ssl.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
      ASSERT_EQ(SSL_do_handshake(ssl.get()), 1);
    }
    for (int i = 0; i < 20; ++i) {
      SSL_key_update(ssl.get(), SSL_KEY_UPDATE_REQUESTED);
      ASSERT_EQ(SSL_do_handshake(ssl.get()), 1);
    }
    EXPECT_EQ(SSL_write(ssl.get(), "end", 3), 3);
    char answer[2];
    EXPECT_EQ(SSL_read(ssl.get(), answer, 2), 2);
  });
  std::array<char, 3> room;
  const iovec space{room.data(), room.size()};
  size_t came = 0;
  int reads = 0;
  for (; came == 0; ++reads) {
    const auto some = server->ReadBy({&space, 1}, Clock::Real().Now() + std::chrono::seconds(30));
    ASSERT_OK(some);
    came = *some;
  }
  // These records are short, so each read of the socket returns many of them.
  EXPECT_GT(reads, 5000 * 20 / (64 << 10));
  EXPECT_EQ(std::string(room.data(), came), "end");
  const iovec answer{room.data(), 2};
  EXPECT_EQ(*server->Write({&answer, 1}), 2u);
  peer.join();
}

TEST(TlsContextTest, WhatCannotBeUsedIsNamed) {
  const TestAuthority authority;
  const TestIdentity one = authority.Issue("DNS:a"), two = authority.Issue("DNS:b");
  EXPECT_THAT(ServerTlsContext("no PEM", one.key, "").status().message(), HasSubstr("cert: "));
  EXPECT_THAT(ServerTlsContext(one.certificate, two.key, "").status().message(), HasSubstr("key: "));
  EXPECT_THAT(ServerTlsContext(one.certificate, one.key, "no PEM").status().message(), HasSubstr("cacert: "));
  EXPECT_THAT(ClientTlsContext("", "", "no PEM").status().message(), HasSubstr("cacert: "));
  EXPECT_OK(ClientTlsContext("", "", ""));
}

}  // namespace
}  // namespace routing_replay
