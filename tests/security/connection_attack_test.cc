// Attacks with connections, calls and credit: peers that send little, nothing, or everything at once.
#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "proto/wire/security.h"
#include "tests/security/attack_fixture.h"
#include "tests/security/http2_connection.h"
#include "tests/support/http_client.h"
#include "tests/support/scratch_directory.h"

namespace routing_replay::testing {
namespace {

constexpr char kRejected[] = "routing_replay_connections_rejected_total 1";  // Also matches numbers from ten on.

// The attacker opens more connections than the server has file descriptors. Other clients wait, and are served again
// when descriptors are free.
TEST_F(AttackTest, ConnectionsThatTakeAllDescriptors) {
  const ScratchDirectory scratch;
  const std::string program = scratch.path() + "/few";
  std::ofstream(program) << "#!/bin/sh\nulimit -n 100\nexec " RR_LIMITED_SERVER " \"$@\"\n";
  ASSERT_EQ(chmod(program.c_str(), 0755), 0);
  const std::string http = FreeAddress();
  Start({"--operations-listen", http}, false, program);
  EXPECT_EQ(HttpGet(http, "/readyz").code, 200);
  std::vector<std::unique_ptr<HttpConnection>> connections;
  for (int i = 0; i < 150; ++i) connections.push_back(std::make_unique<HttpConnection>(server_->endpoint()));
  Await([&] { return HttpGet(http, "/metrics").body.find(kRejected) != std::string::npos; });
  connections.clear();
  Await([&] {
    const auto stub = v1::RoutingReplay::NewStub(server_->NewChannel());
    grpc::ClientContext call;
    call.AddMetadata("authorization", "Bearer attacker");
    call.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
    v1::ServerInfo info;
    return stub->GetServerInfo(&call, {}, &info).ok();
  });
  Await([&] { return HttpGet(http, "/readyz").code == 200; });
}

// Starts calls and cancels each at once, as fast as possible, from an address of its own.
class RapidReset {
 public:
  RapidReset(const std::string& address, bool encrypted)
      : port_(std::stoi(address.substr(address.rfind(':') + 1))), encrypted_(encrypted) {
    signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL.
  }

  // Attacks over one connection until the server closes it; returns the number of calls.
  int64_t Attack(int64_t most) const {
    const int fd = Connect();
    const ContextPtr context(SSL_CTX_new(TLS_client_method()));
    SSL_CTX_set_alpn_protos(context.get(), reinterpret_cast<const unsigned char*>("\2h2"), 3);
    const SslPtr tls(encrypted_ ? SSL_new(context.get()) : nullptr);
    bool open = true;
    if (encrypted_) {
      SSL_set_fd(tls.get(), fd);
      open = SSL_connect(tls.get()) == 1;
    }
    const auto send_all = [&](const std::string& bytes) {
      if (encrypted_) return SSL_write(tls.get(), bytes.data(), static_cast<int>(bytes.size())) > 0;
      return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
    };
    open = open && send_all(kHttp2Preface + Http2Frame(4, 0, 0, "", 0));
    int64_t calls = 0;
    for (uint32_t stream = 1; open && calls < most;) {
      constexpr int kAtOnce = 500;
      std::string bytes;
      for (int i = 0; i < kAtOnce; ++i, stream += 2) {
        const std::string& headers = stream == 1 ? kFirst : kAgain;
        bytes += Http2Frame(1, 4, stream, headers, headers.size());
        bytes += Http2Frame(3, 0, stream, std::string("\0\0\0\10", 4), 4);
      }
      open = send_all(bytes);
      calls += kAtOnce;
    }
    close(fd);
    return calls;
  }

 private:
  using ContextPtr = std::unique_ptr<SSL_CTX, OpenSslFree<SSL_CTX_free>>;
  using SslPtr = std::unique_ptr<SSL, OpenSslFree<SSL_free>>;

  // Returns a header that the receiver adds to its table (HPACK). Sending the header again then takes only one byte.
  static std::string Kept(const std::string& name, const std::string& value) {
    return absl::StrCat("\x40", std::string(1, static_cast<char>(name.size())), name,
                        std::string(1, static_cast<char>(value.size())), value);
  }

  int Connect() const {
    sockaddr_in from = LoopbackAddress(0), to = LoopbackAddress(port_);
    inet_pton(AF_INET, "127.0.0.2", &from.sin_addr);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&from), sizeof(from)), 0);
    EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    return fd;
  }

  const std::string kFirst = Kept(":method", "POST") + Kept(":scheme", "http") + Kept(":authority", "test") +
                             Kept(":path", "/routing_replay.v1.RoutingReplay/Stat") + Kept("te", "trailers") +
                             Kept("content-type", "application/grpc");
  const std::string kAgain = "\xc3\xc2\xc1\xc0\xbf\xbe";
  const int port_;
  const bool encrypted_;
};

TEST_F(AttackTest, RapidReset) {
  for (const bool encrypted : {false, true}) {
    const std::string http = FreeAddress();
    Start({"--operations-listen", http}, encrypted);
    Bystander bystander(*server_);
    bystander.Await(1);
    constexpr int64_t kMost = 2'000'000;
    // A second attack must be stopped, too.
    for (int i = 0; i < 2; ++i) EXPECT_LT(RapidReset(server_->endpoint(), encrypted).Attack(kMost), kMost);
    bystander.Await(2);
    EXPECT_GE(Info().counters().at("routing_replay_connections_cut_total"), 1u);
    EXPECT_LT(PeakMemory(), kBound);
  }
}

// Calls that send only headers. Meanwhile other clients make the same calls.
TEST_F(AttackTest, ControlCallsWithoutARequest) {
  Start({"--max-streams", "1000", "--stall-timeout", "3s"});
  std::atomic<bool> stopping{false};
  int answered = 0;
  absl::Status failure;
  std::thread other([&] {
    const auto stub = v1::RoutingReplay::NewStub(server_->NewChannel());
    v1::ServerInfo info;
    while (!stopping && failure.ok()) {
      failure = FromGrpcStatus(stub->GetServerInfo(NewCall("other").get(), {}, &info));
      ++answered;
    }
  });
  constexpr int kConnections = 4, kCalls = 500;
  std::vector<std::unique_ptr<Http2Connection>> connections;
  std::vector<uint32_t> calls;
  for (int i = 0; i < kConnections; ++i) {
    connections.push_back(std::make_unique<Http2Connection>(server_->endpoint()));
    for (int call = 0; call < kCalls; ++call) calls.push_back(connections.back()->StartCall("Seal", "attacker"));
  }
  int most = 0;
  Await([&] {
    most = std::max(most, Threads());
    ptrdiff_t ended = 0;
    for (int i = 0; i < kConnections; ++i) {
      connections[i]->Listen(std::chrono::milliseconds(1));
      ended += std::count_if(calls.begin() + i * kCalls, calls.begin() + (i + 1) * kCalls,
                             [&](uint32_t call) { return connections[i]->Ended(call); });
    }
    return ended == kConnections * kCalls;
  });
  stopping = true;
  other.join();
  EXPECT_OK(failure);
  EXPECT_GT(answered, 10);
  EXPECT_LT(most, 40);
  EXPECT_EQ(Info().counters().at("routing_replay_rpcs_total{code=\"DEADLINE_EXCEEDED\",method=\"Seal\"}"),
            uint64_t{kConnections * kCalls});
  for (const auto& connection : connections) EXPECT_FALSE(connection->closed());
}

// A peer that exceeds the announced limit of calls.
TEST_F(AttackTest, CallsOfWhichOnlyTheHeadersCome) {
  Start({"--stall-timeout", "3s"});
  Bystander bystander(*server_);
  const int64_t before = PeakMemory();
  const auto await_ends = [](Http2Connection& connection, const std::vector<uint32_t>& calls) {
    Await([&] {
      connection.Listen(std::chrono::milliseconds(10));
      return std::all_of(calls.begin(), calls.end(), [&](uint32_t call) { return connection.Ended(call); });
    });
    EXPECT_FALSE(connection.closed());
  };
  int64_t one_flood = 0;
  for (const char* method : {"Put", "Read", "Append", "Stat"}) {
    // Without a token: each call ends at once.
    Http2Connection unknown(server_->endpoint());
    std::vector<uint32_t> calls;
    for (int i = 0; i < 2000; ++i) calls.push_back(unknown.StartCall(method, ""));
    await_ends(unknown, calls);
    if (one_flood == 0) one_flood = PeakMemory() - before;
    // With a token: calls over the limit end at once; the others end after a while, because no request follows.
    Http2Connection known(server_->endpoint());
    calls.clear();
    for (int i = 0; i < 1000; ++i) calls.push_back(known.StartCall(method, "attacker"));
    await_ends(known, calls);
    const v1::ServerInfo info = Info();
    const auto rejected = info.counters().find(
        absl::StrCat("routing_replay_rpcs_total{code=\"RESOURCE_EXHAUSTED\",method=\"", method, "\"}"));
    ASSERT_NE(rejected, info.counters().end());
    EXPECT_EQ(rejected->second, 1000u - 2 * 256);
  }
  bystander.Await(2);
  EXPECT_LT(Threads(), 40);
  EXPECT_LT(one_flood, 48 * kMiB);  // gRPC takes 20 KiB for a call.
  // The calls of one connection may start before gRPC has freed those of the connection before, so the memory of two
  // floods is permitted. It must not grow further with the number of connections.
  EXPECT_LT(PeakMemory() - before, 2 * one_flood + 8 * kMiB);
}

// Peers that send nothing, that stop in the middle, and that send one byte at a time.
class SlowPeers {
 public:
  // `opening`: the first bytes of an honest client.
  SlowPeers(const std::string& address, std::string opening) : opening_(std::move(opening)) {
    for (int i = 0; i < 10; ++i) {
      silent_.push_back(std::make_unique<RawSocket>(address));
      stopped_.push_back(std::make_unique<RawSocket>(address));
      EXPECT_GT(stopped_.back()->Send(opening_.substr(0, opening_.size() / 2)), 0u);
      slow_.push_back(std::make_unique<RawSocket>(address));
    }
  }

  // Sends the next byte occasionally; returns whether the server has closed all connections.
  bool Step() {
    constexpr size_t kStepsOfAByte = 5;
    const std::string byte = opening_.substr(std::min(steps_++ / kStepsOfAByte, opening_.size() - 1), 1);
    const bool sends = steps_ % kStepsOfAByte == 0;
    bool all_closed = true;
    for (const auto& socket : slow_) {
      if (sends) socket->Send(byte);
    }
    for (const auto* sockets : {&silent_, &stopped_, &slow_}) {
      for (const auto& socket : *sockets) {
        socket->Receive();
        all_closed &= socket->closed();
      }
    }
    return all_closed;
  }

 private:
  const std::string opening_;
  size_t steps_ = 0;
  std::vector<std::unique_ptr<RawSocket>> silent_, stopped_, slow_;
};

class SlowLorisTest : public AttackTest {
 protected:
  // `call`, `page`: first bytes of an honest client on the gRPC port and on the operations port.
  void ExpectSlowPeersAreCutOff(bool encrypted, const std::string& call, const std::string& page) {
    const std::string operations = FreeAddress();
    Start({"--stall-timeout", "1s", "--operations-listen", operations}, encrypted);
    Bystander bystander(*server_);
    const int64_t before = PeakMemory();
    SlowPeers calls(server_->endpoint(), call), pages(operations, page);
    Await([&] {
      const bool calls_closed = calls.Step();
      return pages.Step() && calls_closed;
    });
    bystander.Await(2);
    EXPECT_LT(PeakMemory() - before, 32 * kMiB);
  }
};

TEST_F(SlowLorisTest, OnTheConnection) {
  const std::string http2 = kHttp2Preface + Http2Frame(4, 0, 0, "", 0) +
                            Http2Frame(1, 4, 1, std::string(256, '\0'), 16 << 10);  // Announces headers of 16 KiB.
  ExpectSlowPeersAreCutOff(/*encrypted=*/false, http2, "GET /metrics HTTP/1.1\r\nX: " + std::string(256, 'x'));
}

TEST_F(SlowLorisTest, InTheTlsHandshake) {
  const std::string hello = std::string("\x16\3\1\2\0\1\0\1\xfc\3\3", 11) + std::string(256, 'x');  // Of 512 bytes.
  ExpectSlowPeersAreCutOff(/*encrypted=*/true, hello, hello);
}

// After the handshake the server accepts a single byte as an answer to its ping.
TEST_F(AttackTest, FramesThatComeByteByByte) {
  Start({"--stall-timeout", "1s", "--max-deadline", "1s", "--max-connection-age", "1s", "--max-connection-age-grace",
         "1s"});
  const std::string opening = std::string(kHttp2Preface) + Http2Frame(4, 0, 0, "", 0);
  const std::string frame = Http2Frame(1, 4, 1, std::string(256, '\0'), 16 << 10);  // Announces 16 KiB.
  std::vector<std::unique_ptr<RawSocket>> connections;
  for (int i = 0; i < 10; ++i) {
    connections.push_back(std::make_unique<RawSocket>(server_->endpoint()));
    ASSERT_EQ(connections.back()->Send(opening), opening.size());
  }
  size_t sent = 0;
  Await([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const std::string byte = frame.substr(std::min(sent++, frame.size() - 1), 1);
    bool all_closed = true;
    for (const auto& connection : connections) {
      connection->Send(byte);
      connection->Receive();
      all_closed &= connection->closed();
    }
    return all_closed;
  });
  EXPECT_GT(sent, 10u);  // They were not closed during the handshake.
}

TEST_F(AttackTest, CreditThatIsNotUsedComesBack) {
  Start({"--stall-timeout", "1s"});
  // A stream without credit may be idle.
  const auto rest = NewCall("other");
  const auto resting = stub_->Append(rest.get());
  v1::AppendRequest open = OneAppend("run", "resting", 0);
  open.mutable_append()->clear_tensor();
  open.clear_payload();
  v1::AppendResponse opened;
  ASSERT_TRUE(resting->Write(open) && resting->Read(&opened));
  const auto hold = NewCall("attacker"), silent = NewCall("attacker");
  const auto holder = stub_->Append(hold.get());
  const auto nothing = stub_->Append(silent.get());
  v1::AppendResponse answer;
  ASSERT_TRUE(holder->Write(Wish("run", 60 * kMiB)) && holder->Read(&answer));
  EXPECT_GT(answer.credit().granted_bytes(), 0u);
  EXPECT_FALSE(holder->Read(&answer));
  EXPECT_EQ(holder->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_FALSE(nothing->Read(&answer));
  EXPECT_EQ(nothing->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(Info().reserved_bytes(), 0u);
  open.mutable_append()->set_sample("rested");
  EXPECT_TRUE(resting->Write(open) && resting->Read(&opened));
  EXPECT_EQ(opened.ack().error().code(), 0) << opened.ack().error().message();
}

// A peer holds credit, and reads none of its answers, or only some.
TEST_F(AttackTest, AnswersThatAreNotTakenGiveTheCreditBack) {
  Start({"--stall-timeout", "1s"});
  Bystander bystander(*server_);
  for (const bool takes_one : {false, true}) {
    Http2Connection connection(server_->endpoint(), /*stream_window=*/60);
    const uint32_t stream = connection.StartCall("Append", "attacker");
    ASSERT_TRUE(connection.Send(stream, GrpcMessage(Wish("run", 60 * kMiB)), kPatience));
    Await([&] {
      connection.Listen(std::chrono::milliseconds(10));
      return Info().reserved_bytes() > 7 * kMiB;
    });
    for (int i = 0; i < 40; ++i) ASSERT_TRUE(connection.Send(stream, GrpcMessage(Wish("run", 1)), kPatience));
    if (takes_one) connection.Listen(std::chrono::milliseconds(1500));
    if (takes_one) connection.Allow(stream, 150);
    // It still answers pings.
    Await([&] {
      connection.Listen(std::chrono::milliseconds(10));
      return connection.Ended(stream);
    });
    EXPECT_FALSE(connection.closed());
    EXPECT_LT(Info().reserved_bytes(), 1000u);  // The bystander's append.
  }
  bystander.Await(2);
}

// Many calls send a long message without credit, and never its last byte, so gRPC holds what has arrived. If this
// exceeds gRPC's memory quota, gRPC ends calls, but how early depends on the machine. So the test checks a bound that
// holds on every machine: one message for each permitted call.
TEST_F(AttackTest, MessagesWithoutCredit) {
  constexpr int kFloods = 200, kConnections = 24;
  constexpr int64_t kMessage = 8 * kMiB, kBeside = 64 * kMiB;
  struct Case {
    const char* token;
    int connections;  // The permitted number of connections.
    int64_t messages;
  };
  v1::AppendRequest request = OneAppend("run", "flood", 3);
  request.set_payload(std::string(7 * kMiB, '\1'));
  const std::string message = GrpcMessage(request);
  struct Flood {
    explicit Flood(const std::string& address) : connection(address) {}
    Http2Connection connection;
    uint32_t stream = 0;
    size_t sent = 0;
  };
  for (const auto& [token, connections, messages] :
       {Case{"", 1000, 0}, Case{"attacker", 1000, kFloods}, Case{"attacker", kConnections, kConnections}}) {
    Start({"--stall-timeout", "10s", "--max-connections-per-address", absl::StrCat(connections)});
    const int64_t before = PeakMemory();
    std::vector<std::unique_ptr<Flood>> floods;
    for (int i = 0; i < kFloods; ++i) {
      floods.push_back(std::make_unique<Flood>(server_->endpoint()));
      floods.back()->stream = floods.back()->connection.StartCall(i % 2 == 0 ? "Put" : "Append", token);
    }
    // Sends on all connections until the server has accepted no more bytes for a second.
    constexpr std::chrono::seconds kNothing(1);
    for (auto last = std::chrono::steady_clock::now(); std::chrono::steady_clock::now() - last < kNothing;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      for (const auto& flood : floods) {
        const size_t part = std::min<size_t>(message.size() - 1 - flood->sent, 128 << 10);
        const size_t sent =
            flood->connection.Offer(flood->stream, absl::string_view(message).substr(flood->sent, part));
        flood->sent += sent;
        if (sent > 0) last = std::chrono::steady_clock::now();
      }
    }
    EXPECT_LT(PeakMemory() - before, messages * kMessage + kBeside);
    // Other clients are served again, at the latest when the requests of the flood time out.
    Await([&] {
      v1::AppendAck ack;
      return stub_->Put(NewCall("other").get(), OneAppend("run", "theirs", 3), &ack).ok();
    });
  }
  const auto call = NewCall("attacker");
  const auto stream = stub_->Append(call.get());
  v1::AppendResponse answer;
  ASSERT_TRUE(stream->Write(request) && stream->Read(&answer));
  EXPECT_EQ(answer.ack().error().code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

// A stream that names many runs, most of which do not exist.
TEST_F(AttackTest, NamesOfRunsDoNotPileUp) {
  for (const bool limited : {false, true}) {
    Start(limited ? std::vector<std::string>{"--run-budget", "8MiB"} : std::vector<std::string>());
    const auto call = NewCall("attacker");
    const auto stream = stub_->Append(call.get());
    const auto send = [&](int begin, int end) {
      v1::AppendRequest name;
      for (int i = begin; i < end; ++i) {
        name.set_run(absl::StrCat(std::string(118, 'n'), i));
        ASSERT_TRUE(stream->Write(name));
      }
      v1::AppendResponse answer;
      ASSERT_TRUE(stream->Write(Wish("run", 1)) && stream->Read(&answer));  // All messages before it are processed.
      EXPECT_EQ(answer.credit().granted_bytes(), 1u);
    };
    // The first round allocates the buffers that gRPC keeps for a stream.
    ASSERT_NO_FATAL_FAILURE(send(0, 200'000));
    const int64_t before = PeakMemory();
    ASSERT_NO_FATAL_FAILURE(send(200'000, 400'000));
    // The names alone are 25 MiB. If the server is behind, gRPC also buffers a window of the stream, which grew to 15
    // MiB at most.
    EXPECT_LT(PeakMemory() - before, 20 * kMiB);
    stream->WritesDone();
    EXPECT_TRUE(stream->Finish().ok());
  }
}

}  // namespace
}  // namespace routing_replay::testing
