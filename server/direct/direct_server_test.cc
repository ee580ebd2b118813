#include "server/direct/direct_server.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/message/append_message.h"
#include "proto/wire/message/read_message.h"
#include "routing_replay/v1/routing_replay.pb.h"
#include "server/store/memory/memory_store.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

using testing::Fails;

constexpr std::chrono::seconds kPatience(30);

// A peer that says whatever the test wants.
class Peer final {
 public:
  explicit Peer(const std::string& address) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    const timeval patience{.tv_sec = kPatience.count(), .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer() { close(fd_); }

  void Say(const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t some = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (some <= 0) return;
      sent += static_cast<size_t>(some);
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
  // Nothing: the server has closed the connection.
  std::optional<ReceivedFrame> Hear() {
    FrameReader reader([](const routing_replay::Frame&) { return absl::OkStatus(); });
    while (!reader.done()) {
      const iovec space = reader.Space().front();
      const ssize_t bytes = recv(fd_, space.iov_base, space.iov_len, 0);
      if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) ADD_FAILURE() << "the server says nothing";
      if (bytes <= 0) return std::nullopt;
      EXPECT_OK(reader.Advance(static_cast<size_t>(bytes)));
    }
    return reader.Take();
  }
  // The end that comes next.
  absl::Status End() {
    const auto frame = Hear();
    if (!frame) return absl::AbortedError("closed without an end");
    EXPECT_EQ(frame->type(), FrameType::kEnd);
    return frame->header().empty() ? absl::OkStatus() : DecodeStreamStatus(frame->header());
  }

 private:
  const int fd_;
};

class DirectServerTest : public ::testing::Test {
 protected:
  void Start(ConnectionLimits limits = {}) {
    config_.threads = 2;
    context_ = std::make_unique<ServiceContext>(config_, Clock::Real(), access_, budget_, *store_, metrics_);
    auto server = DirectServer::Listen(*context_, {.address = "127.0.0.1:0"}, limits, [this](ConnectionEvent event) {
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
  std::string Ticket() { return context_->direct.tickets->Issue("").secret; }
  // The loop counts a connection after its peer has seen what happens to it.
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

  ServerConfig config_;
  AccessControl access_;
  ByteBudget budget_{int64_t{64} << 20};
  std::unique_ptr<Store> store_ = NewMemoryStore({.budget = &budget_});
  Metrics metrics_;
  std::atomic<int> open_{0}, rejected_{0};
  std::unique_ptr<ServiceContext> context_;
  std::unique_ptr<DirectServer> server_;
};

TEST_F(DirectServerTest, AConnectionServesReadsOneAfterTheOther) {
  Start();
  Peer peer(server_->address());
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

TEST_F(DirectServerTest, WhoseTicketItIsIsGreeted) {
  Start();
  Peer peer(server_->address());
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

TEST_F(DirectServerTest, APortThatWasNotAskedForMayBeAnother) {
  Start();
  const DirectListener taken{.address = server_->address()};
  ServiceContext other(config_, Clock::Real(), access_, budget_, *store_, metrics_);
  EXPECT_TRUE(absl::IsUnavailable(DirectServer::Listen(other, taken, {}, nullptr).status()));
  const auto moved = DirectServer::Listen(other, {.address = taken.address, .or_any_port = true}, {}, nullptr);
  ASSERT_OK(moved);
  EXPECT_NE((*moved)->address(), taken.address);
  EXPECT_EQ((*moved)->address(), absl::StrCat("127.0.0.1:", other.direct.port));
}

TEST_F(DirectServerTest, WithoutGrpcOverTcpThereIsTheUnixSocketAlone) {
  ServiceContext context(config_, Clock::Real(), access_, budget_, *store_, metrics_);
  const auto server = DirectServer::Listen(context, {}, {}, nullptr);
  ASSERT_OK(server);
  EXPECT_EQ((*server)->address(), "");
  EXPECT_EQ(context.direct.port, 0);
  EXPECT_FALSE(context.direct.unix_socket.empty());
}

TEST_F(DirectServerTest, ARejectedCallHasItsReason) {
  Start();
  Peer peer(server_->address());
  peer.Call("Read", Ticket());
  peer.Frame(FrameType::kMessage, ReadOf("other"));
  EXPECT_THAT(peer.End(), Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
  EXPECT_FALSE(peer.Hear());
}

TEST_F(DirectServerTest, TicketsThatAreNoneOpenNothing) {
  Start();
  for (const std::string& ticket : {std::string(), std::string(16, '\0'), std::string(1000, 'x')}) {
    Peer peer(server_->address());
    peer.Call("Read", ticket);
    peer.Frame(FrameType::kMessage, ReadOf("run"));
    EXPECT_TRUE(absl::IsUnavailable(peer.End()));
    EXPECT_FALSE(peer.Hear());
  }
  AwaitOpen(0);
}

TEST_F(DirectServerTest, WhatIsNoCallEndsTheConnection) {
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
    Peer peer(server_->address());
    peer.Say(bytes);
    EXPECT_FALSE(peer.Hear());
  }
  AwaitOpen(0);
}

TEST_F(DirectServerTest, NothingIsTakenThatWasNotGranted) {
  Start();
  const int64_t before = budget_.used();
  for (const uint64_t payload : {uint64_t{1}, uint64_t{1} << 20, uint64_t{1} << 62}) {
    Peer peer(server_->address());
    peer.Call("Append", Ticket());
    peer.Say(EncodeFrame(FrameType::kMessage, 0, payload));
    EXPECT_EQ(peer.End().code(), absl::StatusCode::kResourceExhausted);
  }
  Peer peer(server_->address());
  peer.Call("Append", Ticket());
  peer.Say(EncodeFrame(FrameType::kMessage, 0xFFFFFFFF, 0));
  EXPECT_THAT(peer.End(), Fails(absl::StatusCode::kResourceExhausted, Reason::kLength));
  EXPECT_EQ(budget_.used(), before);
}

TEST_F(DirectServerTest, AnAppendComesInPartsThatAreKept) {
  Start();
  Peer peer(server_->address());
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

TEST_F(DirectServerTest, WhoSaysNothingIsCutOff) {
  config_.stall_timeout = std::chrono::milliseconds(300);
  Start();
  Peer silent(server_->address());
  Peer half(server_->address());
  half.Say(EncodeFrame(FrameType::kCall, 20, 0) + "half");
  Peer without_request(server_->address());
  without_request.Call("Read", Ticket());
  EXPECT_FALSE(silent.Hear());
  EXPECT_FALSE(half.Hear());
  EXPECT_EQ(without_request.End().code(), absl::StatusCode::kDeadlineExceeded);
  AwaitOpen(0);
}

TEST_F(DirectServerTest, ConnectionsAreCounted) {
  Start({.connections = 4, .per_address = 2});
  Peer first(server_->address()), second(server_->address());
  AwaitOpen(2);
  Peer third(server_->address());
  EXPECT_FALSE(third.Hear());
  Await(rejected_, 1);
}

TEST_F(DirectServerTest, CallsEndWithTheServer) {
  Start();
  Peer waiting(server_->address()), idle(server_->address());
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

}  // namespace
}  // namespace routing_replay::server
