#include "server/direct/direct_server.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/message/append_message.h"
#include "proto/wire/message/byte_stream.h"
#include "proto/wire/message/frame.h"
#include "proto/wire/message/read_message.h"
#include "proto/wire/tls/tls_stream.h"
#include "routing_replay/v1/routing_replay.pb.h"
#include "server/store/memory/memory_store.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_certificates.h"

namespace routing_replay::server {
namespace {

using testing::Fails;

constexpr std::chrono::seconds kPatience(30);

// A client that sends whatever the test wants, with or without TLS.
class Peer final {
 public:
  // `tls` is null for a connection without TLS.
  Peer(const std::string& address, const TlsContext& tls) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to{};
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    PrepareTcp(fd);
    if (tls == nullptr) {
      stream_ = std::make_unique<SocketStream>(fd);
    } else {
      stream_ = TlsStream::Connect(tls, fd, "localhost");
    }
  }

  void Say(absl::string_view bytes) {
    while (!bytes.empty()) {
      const iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
      const auto sent = stream_->Write({&piece, 1});
      if (!sent.ok()) return;
      bytes.remove_prefix(*sent);
      if (*sent == 0) stream_->Wait(stream_->write_events(), DeadlineAfter(Clock::Real().Now(), kPatience));
    }
  }
  void Frame(FrameType type, const std::string& header, const std::string& payload = "") {
    Say(EncodeFrame(type, header.size(), payload.size()) + header + payload);
  }
  void Call(const std::string& method, const std::string& ticket) {
    v1::DirectCall call;
    call.set_method(method);
    call.set_ticket(ticket);
    Frame(FrameType::kCall, call.SerializeAsString());
  }
  // Receives the next frame. Returns nothing if the server has closed the connection.
  std::optional<ReceivedFrame> Hear() {
    FrameReader reader([](const routing_replay::Frame&) { return absl::OkStatus(); });
    const Clock::Time deadline = DeadlineAfter(Clock::Real().Now(), kPatience);
    while (!reader.done()) {
      const auto bytes = stream_->ReadBy(reader.Space(), deadline);
      if (!bytes.ok()) return std::nullopt;
      if (*bytes == 0 && MsUntil(deadline) == 0) {
        ADD_FAILURE() << "the server says nothing";
        return std::nullopt;
      }
      EXPECT_OK(reader.Advance(*bytes));
    }
    return reader.Take();
  }
  // True if a valid frame arrives. TLS records of the server are not valid frames.
  bool HearsAFrame() {
    FrameReader reader([](const routing_replay::Frame&) { return absl::OkStatus(); });
    const Clock::Time deadline = DeadlineAfter(Clock::Real().Now(), kPatience);
    while (!reader.done() && MsUntil(deadline) > 0) {
      const auto bytes = stream_->ReadBy(reader.Space(), deadline);
      if (!bytes.ok() || !reader.Advance(*bytes).ok()) return false;
    }
    return true;
  }
  // Receives the end of the call.
  absl::Status End() {
    const auto frame = Hear();
    if (!frame) return absl::AbortedError("closed without an end");
    EXPECT_EQ(frame->type(), FrameType::kEnd);
    return frame->header().empty() ? absl::OkStatus() : DecodeStreamStatus(frame->header());
  }

 private:
  std::unique_ptr<ByteStream> stream_;
};

// The parameter is true for tests with TLS.
class DirectServerTest : public ::testing::TestWithParam<bool> {
 protected:
  void Start(ConnectionLimits limits = {}) {
    config_.threads = 2;
    context_ = std::make_unique<ServiceContext>(config_, Clock::Real(), access_, budget_, *store_, metrics_);
    if (encrypted_) {
      SetIdentity(authority_.Issue(testing::kLocalNames));
      tls_ = *ServedTls::Create({.certificate = File("cert"), .key = File("key"), .client_ca = client_ca_});
    }
    const DirectListener listener{.address = "127.0.0.1:0"};
    auto server = DirectServer::Listen(*context_, listener, tls_.get(), limits, [this](ConnectionEvent event) {
      if (event == ConnectionEvent::kOpened) ++open_;
      if (event == ConnectionEvent::kEnded) --open_;
      if (event == ConnectionEvent::kRejected) ++rejected_;
    });
    ASSERT_OK(server);
    server_ = *std::move(server);
    server_->Start();
    const Geometry geometry =
        *Geometry::Create({.num_layers = 1, .moe_layer_ids = {0}, .num_experts = {8}, .top_k = {1}});
    ASSERT_OK(store_->OpenRun("run", &geometry, RunOptions{}));
  }
  std::string File(const std::string& name) const { return files_.path() + "/" + name; }
  void SetIdentity(const testing::TestIdentity& identity) const {
    std::ofstream(File("cert")) << identity.certificate;
    std::ofstream(File("key")) << identity.key;
  }
  Peer Dial() const { return Dial(authority_, {}); }
  // Connects with the certificate of `identity`, if it has one.
  Peer Dial(const testing::TestAuthority& trusted, const testing::TestIdentity& identity) const {
    TlsContext tls;
    if (encrypted_) tls = *ClientTlsContext(identity.certificate, identity.key, trusted.certificate());
    return Peer(server_->address(), tls);
  }
  std::string Ticket() { return context_->direct.tickets->Issue("").secret; }
  // Waits, because the server updates its counts after the peer has seen the effect.
  static void Await(const std::atomic<int>& count, int expected) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (count != expected && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(count, expected);
  }
  void AwaitOpen(int connections) { Await(open_, connections); }
  static std::string ReadOf(const std::string& run) {
    return EncodeReadRequest({.run = run, .samples = {{.sample = "s"}}});
  }

  bool encrypted_ = GetParam();
  const testing::ScratchDirectory files_;
  const testing::TestAuthority authority_;
  std::string client_ca_;
  std::unique_ptr<ServedTls> tls_;
  ServerConfig config_;
  AccessControl access_;
  ByteBudget budget_{int64_t{64} << 20};
  std::unique_ptr<Store> store_ = NewMemoryStore({.budget = &budget_});
  Metrics metrics_;
  std::atomic<int> open_{0}, rejected_{0};
  std::unique_ptr<ServiceContext> context_;
  std::unique_ptr<DirectServer> server_;
};

TEST_P(DirectServerTest, AConnectionServesReadsOneAfterTheOther) {
  Start();
  Peer peer = Dial();
  for (int i = 0; i < 3; ++i) {
    peer.Call("Read", Ticket());
    peer.Frame(FrameType::kMessage, ReadOf("run"));
    const auto answer = peer.Hear();
    ASSERT_TRUE(answer);
    const auto response = ParseReadResponse(answer->chain());
    ASSERT_OK(response);
    EXPECT_EQ(response->records.at(0).status, SampleStatus::kNotFound);
    EXPECT_OK(peer.End());
  }
}

TEST_P(DirectServerTest, WhoseTicketItIsIsGreeted) {
  Start();
  Peer peer = Dial();
  for (int i = 0; i < 2; ++i) {
    peer.Call("", Ticket());
    EXPECT_OK(peer.End());
  }
  peer.Call("Read", Ticket());
  peer.Frame(FrameType::kMessage, ReadOf("run"));
  ASSERT_TRUE(peer.Hear());
  EXPECT_OK(peer.End());
  peer.Call("", std::string(16, '\0'));
  EXPECT_TRUE(absl::IsUnavailable(peer.End()));
  EXPECT_FALSE(peer.Hear());
}

TEST_P(DirectServerTest, APortThatWasNotAskedForMayBeAnother) {
  Start();
  const DirectListener taken{.address = server_->address()};
  ServiceContext other(config_, Clock::Real(), access_, budget_, *store_, metrics_);
  EXPECT_TRUE(absl::IsUnavailable(DirectServer::Listen(other, taken, tls_.get(), {}, nullptr).status()));
  const DirectListener wish{.address = taken.address, .or_any_port = true};
  const auto moved = DirectServer::Listen(other, wish, tls_.get(), {}, nullptr);
  ASSERT_OK(moved);
  EXPECT_NE((*moved)->address(), taken.address);
  EXPECT_EQ((*moved)->address(), absl::StrCat("127.0.0.1:", other.direct.port));
}

TEST_P(DirectServerTest, WithoutGrpcOverTcpThereIsTheUnixSocketAlone) {
  ServiceContext context(config_, Clock::Real(), access_, budget_, *store_, metrics_);
  const auto server = DirectServer::Listen(context, {}, nullptr, {}, nullptr);
  ASSERT_OK(server);
  EXPECT_EQ((*server)->address(), "");
  EXPECT_EQ(context.direct.port, 0);
  EXPECT_FALSE(context.direct.unix_socket.empty());
}

TEST_P(DirectServerTest, ARejectedCallHasItsReason) {
  Start();
  Peer peer = Dial();
  peer.Call("Read", Ticket());
  peer.Frame(FrameType::kMessage, ReadOf("other"));
  EXPECT_THAT(peer.End(), Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
  EXPECT_FALSE(peer.Hear());
}

TEST_P(DirectServerTest, TicketsThatAreNoneOpenNothing) {
  Start();
  for (const std::string& ticket : {std::string(), std::string(16, '\0'), std::string(1000, 'x')}) {
    Peer peer = Dial();
    peer.Call("Read", ticket);
    peer.Frame(FrameType::kMessage, ReadOf("run"));
    EXPECT_TRUE(absl::IsUnavailable(peer.End()));
    EXPECT_FALSE(peer.Hear());
  }
  AwaitOpen(0);
}

TEST_P(DirectServerTest, WhatIsNoCallEndsTheConnection) {
  Start();
  const std::string call = [&] {
    v1::DirectCall message;
    message.set_method("DropRun");
    message.set_ticket(Ticket());
    return message.SerializeAsString();
  }();
  const std::string bad[] = {
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
      EncodeFrame(FrameType::kMessage, 4, 0) + "abcd",
      EncodeFrame(FrameType::kCall, 0xFFFFFFFF, 0),
      EncodeFrame(FrameType::kCall, 0, size_t{1} << 60),
      EncodeFrame(FrameType::kCall, 4, 0) + "\xFF\xFF\xFF\xFF",
      EncodeFrame(FrameType::kCall, call.size(), 0) + call,
  };
  for (const std::string& bytes : bad) {
    Peer peer = Dial();
    peer.Say(bytes);
    EXPECT_FALSE(peer.Hear());
  }
  AwaitOpen(0);
}

TEST_P(DirectServerTest, NothingIsTakenThatWasNotGranted) {
  Start();
  const int64_t before = budget_.used();
  for (const uint64_t payload : {(uint64_t{32} << 10) + 1, uint64_t{1} << 20, uint64_t{1} << 62}) {
    Peer peer = Dial();
    peer.Call("Append", Ticket());
    peer.Say(EncodeFrame(FrameType::kMessage, 0, payload));
    EXPECT_EQ(peer.End().code(), absl::StatusCode::kResourceExhausted);
  }
  Peer peer = Dial();
  peer.Call("Append", Ticket());
  peer.Say(EncodeFrame(FrameType::kMessage, 0xFFFFFFFF, 0));
  EXPECT_THAT(peer.End(), Fails(absl::StatusCode::kResourceExhausted, Reason::kLength));
  EXPECT_EQ(budget_.used(), before);
}

TEST_P(DirectServerTest, AnAppendComesInPartsThatAreKept) {
  Start();
  Peer peer = Dial();
  peer.Call("Append", Ticket());
  peer.Frame(FrameType::kMessage, EncodeAppendRequest({.run = "run", .want_bytes = 1 << 20}, 0));
  const auto credit = peer.Hear();
  ASSERT_TRUE(credit);
  ASSERT_GT(ParseAppendResponse(credit->chain())->credit->granted_bytes, 0u);
  AppendHeader header{.append_id = 1, .sample = "s", .rows = {0, 3}};
  const std::string rows("\1\2\3", 3);
  header.payload_kind =
      TensorDescription{.dtype = DType::kU8, .shape = {3, 1, 1}, .layer_basis = LayerBasis::kMoeLayers};
  peer.Frame(FrameType::kMessage, EncodeAppendRequest({.append = header}, rows.size()), rows);
  const auto ack = peer.Hear();
  ASSERT_TRUE(ack);
  const auto response = ParseAppendResponse(ack->chain());
  ASSERT_OK(response);
  EXPECT_OK(response->ack->error);
  EXPECT_EQ(response->ack->committed_rows, 3);
}

TEST_P(DirectServerTest, WhoSaysNothingIsCutOff) {
  config_.stall_timeout = std::chrono::milliseconds(300);
  Start();
  Peer silent = Dial();
  Peer half = Dial();
  half.Say(EncodeFrame(FrameType::kCall, 20, 0) + "half");
  Peer half_message = Dial();
  half_message.Call("Append", Ticket());
  half_message.Frame(FrameType::kMessage, EncodeAppendRequest({.run = "run"}, 0));
  half_message.Say(EncodeFrame(FrameType::kMessage, 20, 0) + "half");
  Peer without_request = Dial();
  without_request.Call("Read", Ticket());
  EXPECT_FALSE(silent.Hear());
  EXPECT_FALSE(half.Hear());
  EXPECT_FALSE(half_message.Hear());
  EXPECT_EQ(without_request.End().code(), absl::StatusCode::kDeadlineExceeded);
  AwaitOpen(0);
}

TEST_P(DirectServerTest, ConnectionsAreCounted) {
  Start({.connections = 4, .per_address = 2});
  Peer first = Dial(), second = Dial();
  AwaitOpen(2);
  Peer third = Dial();
  EXPECT_FALSE(third.Hear());
  Await(rejected_, 1);
}

TEST_P(DirectServerTest, CallsEndWithTheServer) {
  Start();
  Peer waiting = Dial(), idle = Dial();
  waiting.Call("Append", Ticket());
  waiting.Frame(FrameType::kMessage, EncodeAppendRequest({.run = "run", .want_bytes = 1}, 0));
  ASSERT_TRUE(waiting.Hear());
  context_->draining = true;
  server_->Drain();
  EXPECT_THAT(waiting.End(), Fails(absl::StatusCode::kUnavailable, Reason::kDraining));
  server_->ShutdownAndJoin();
  EXPECT_FALSE(idle.Hear());
  EXPECT_EQ(open_, 0);
}

INSTANTIATE_TEST_SUITE_P(PlainAndTls, DirectServerTest, ::testing::Bool(),
                         [](const auto& tls) { return tls.param ? "Tls" : "Plain"; });

class DirectTlsTest : public DirectServerTest {};

TEST_P(DirectTlsTest, ThereIsNoSocketThatIsNotEncrypted) {
  Start();
  EXPECT_TRUE(context_->direct.encrypted);
  EXPECT_EQ(context_->direct.unix_socket, "");
  EXPECT_NE(context_->direct.port, 0);
}

TEST_P(DirectTlsTest, WhatIsNoHandshakeIsCutOff) {
  config_.stall_timeout = std::chrono::milliseconds(300);
  Start();
  v1::DirectCall call;
  call.set_ticket(Ticket());
  const std::string plain = EncodeFrame(FrameType::kCall, call.ByteSizeLong(), 0) + call.SerializeAsString();
  // These clients stop in the handshake: after plaintext, after half a ClientHello, or before sending anything.
  for (const std::string& said : {plain, std::string("\x16\x03\x01\x02\x00\x01", 6), std::string()}) {
    Peer peer(server_->address(), nullptr);
    peer.Say(said);
    EXPECT_FALSE(peer.HearsAFrame());
  }
  Peer stranger = Dial(testing::TestAuthority(), {});
  stranger.Call("", Ticket());
  EXPECT_FALSE(stranger.Hear());
  Peer known = Dial();
  known.Call("", Ticket());
  EXPECT_OK(known.End());
}

TEST_P(DirectTlsTest, NewCertificatesAreForNewConnections) {
  Start();
  Peer before = Dial();
  before.Call("", Ticket());
  EXPECT_OK(before.End());
  const testing::TestAuthority next;
  SetIdentity(next.Issue(testing::kLocalNames));
  ASSERT_TRUE(*tls_->Reload());
  before.Call("", Ticket());
  EXPECT_OK(before.End());
  Peer late = Dial();
  late.Call("", Ticket());
  EXPECT_FALSE(late.Hear());
  Peer after = Dial(next, {});
  after.Call("", Ticket());
  EXPECT_OK(after.End());
}

TEST_P(DirectTlsTest, ClientsNeedACertificateWhereTheyAreAskedForOne) {
  const testing::TestAuthority clients, next;
  client_ca_ = File("clients");
  std::ofstream(client_ca_) << clients.certificate();
  Start();
  for (const testing::TestIdentity& identity : {testing::TestIdentity{}, next.Issue("DNS:worker")}) {
    Peer peer = Dial(authority_, identity);
    peer.Call("", Ticket());
    EXPECT_FALSE(peer.Hear());
  }
  Peer peer = Dial(authority_, clients.Issue("DNS:worker"));
  peer.Call("Read", Ticket());
  peer.Frame(FrameType::kMessage, ReadOf("run"));
  ASSERT_TRUE(peer.Hear());
  EXPECT_OK(peer.End());
}

INSTANTIATE_TEST_SUITE_P(Tls, DirectTlsTest, ::testing::Values(true));

}  // namespace
}  // namespace routing_replay::server
