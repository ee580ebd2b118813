// Tests clients on the server's machine that use shared memory, and what hostile ones can do.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "proto/wire/message/append_message.h"
#include "proto/wire/message/frame.h"
#include "proto/wire/message/read_message.h"
#include "proto/wire/ring/ring_stream.h"
#include "routing_replay/v1/routing_replay.pb.h"
#include "server/direct/direct_server.h"
#include "server/store/memory/memory_store.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

constexpr int kExperts = 8;

Clock::Time Soon() { return DeadlineAfter(Clock::Real().Now(), std::chrono::seconds(30)); }

// A client that sends whatever the test wants.
class Peer final {
 public:
  explicit Peer(const std::string& unix_socket) {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un name{.sun_family = AF_UNIX, .sun_path = {}};
    std::memcpy(name.sun_path + 1, unix_socket.data(), unix_socket.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + unix_socket.size());
    EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&name), size), 0);
    stream_ = std::make_unique<SocketStream>(fd);
  }
  ~Peer() {
    if (memory_ != nullptr) munmap(memory_, SharedRings::kBytes);
  }

  // Asks for shared memory. Returns true if the server gave some.
  bool AskForMemory(const std::string& ticket) {
    Call("", ticket, /*shared_memory=*/true);
    stream_->Wait(POLLIN, Soon());
    const auto fd = ReceiveMemory(stream_->fd());
    EXPECT_OK(fd);
    if (fd.value_or(-1) < 0) return false;
    // A second mapping, for actions that no real client takes.
    memory_ = mmap(nullptr, SharedRings::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    auto rings = SharedRings::Map(*fd);
    close(*fd);
    EXPECT_OK(rings);
    stream_ = std::make_unique<RingStream>(std::move(stream_), *std::move(rings));
    return true;
  }
  void Call(const std::string& method, const std::string& ticket, bool shared_memory = false) {
    v1::DirectCall call;
    call.set_method(method);
    call.set_ticket(ticket);
    call.set_shared_memory(shared_memory);
    Frame(FrameType::kCall, call.SerializeAsString());
  }
  void Frame(FrameType type, const std::string& header, const std::string& payload = "") {
    const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(payload.data()), payload.size());
    FrameWriter writer;
    writer.Put(type, header, {&bytes, 1}, /*in_parts=*/false);
    while (!writer.done()) {
      if (!writer.SendTo(*stream_).ok()) return;
      if (!writer.done()) stream_->Wait(stream_->write_events(), Soon());
    }
  }
  void Say(std::string bytes) {
    const iovec piece{bytes.data(), bytes.size()};
    EXPECT_EQ(stream_->Write({&piece, 1}).value_or(0), bytes.size());
  }
  // Receives the next frame. Returns nothing if the connection has ended.
  std::optional<ReceivedFrame> Hear() {
    FrameReader reader([](const routing_replay::Frame&) { return absl::OkStatus(); });
    while (!reader.done()) {
      const auto bytes = stream_->ReadBy(reader.Space(), Soon());
      if (!bytes.ok()) return std::nullopt;
      if (*bytes == 0 && MsUntil(Soon()) == 0) ADD_FAILURE() << "the server says nothing";
      EXPECT_OK(reader.Advance(*bytes));
    }
    return reader.Take();
  }
  absl::Status End() {
    const auto frame = Hear();
    if (!frame) return absl::AbortedError("closed without an end");
    EXPECT_EQ(frame->type(), FrameType::kEnd);
    return frame->header().empty() ? absl::OkStatus() : DecodeStreamStatus(frame->header());
  }
  // BeginAppend opens an Append call and asks for enough credit. Append then appends `rows`, and returns the error of
  // the ack or of the call.
  void BeginAppend(const std::string& ticket) {
    Call("Append", ticket);
    Frame(FrameType::kMessage, EncodeAppendRequest({.run = "run", .want_bytes = 8 << 20}, 0));
    ASSERT_TRUE(Hear());
  }
  absl::Status Append(uint64_t id, const std::string& rows) {
    const auto count = static_cast<int64_t>(rows.size());
    AppendHeader header{.append_id = id, .sample = absl::StrCat("s", id), .rows = {0, count}};
    header.payload_kind =
        TensorDescription{.dtype = DType::kU8, .shape = {count, 1, 1}, .layer_basis = LayerBasis::kMoeLayers};
    Frame(FrameType::kMessage, EncodeAppendRequest({.append = header}, rows.size()), rows);
    const auto answer = Hear();
    if (!answer) return absl::AbortedError("closed");
    if (answer->type() == FrameType::kEnd) return DecodeStreamStatus(answer->header());
    const auto response = ParseAppendResponse(answer->chain());
    return response.ok() ? response->ack->error : response.status();
  }
  // Sets the position up to which this end claims to have written.
  void Lie(uint64_t written) {
    reinterpret_cast<RingState*>(memory_)[1].written = written;
    const char wake = 0;
    send(stream_->fd(), &wake, 1, 0);
  }
  // The ring that this end writes.
  absl::Span<uint8_t> ring() const {
    return {static_cast<uint8_t*>(memory_) + SharedRings::kBytes - SharedRings::kRingBytes, SharedRings::kRingBytes};
  }

 private:
  std::unique_ptr<ByteStream> stream_;
  void* memory_ = nullptr;
};

class SharedMemoryTest : public ::testing::Test {
 protected:
  void Start() {
    config_.threads = 2;
    context_ = std::make_unique<ServiceContext>(config_, Clock::Real(), access_, budget_, *store_, metrics_);
    auto server = DirectServer::Listen(*context_, {}, nullptr, {}, [this](ConnectionEvent event) {
      if (event == ConnectionEvent::kOpened) ++open_;
      if (event == ConnectionEvent::kEnded) --open_;
    });
    ASSERT_OK(server);
    server_ = *std::move(server);
    server_->Start();
    const Geometry geometry =
        *Geometry::Create({.num_layers = 1, .moe_layer_ids = {0}, .num_experts = {kExperts}, .top_k = {1}});
    ASSERT_OK(store_->OpenRun("run", &geometry, RunOptions{}));
  }
  std::unique_ptr<Peer> Connect() { return std::make_unique<Peer>(context_->direct.unix_socket); }
  std::unique_ptr<Peer> ConnectWithMemory() {
    auto peer = Connect();
    EXPECT_TRUE(peer->AskForMemory(Ticket()));
    return peer;
  }
  std::string Ticket() { return context_->direct.tickets->Issue("").secret; }
  void AwaitOpen(int count) {
    for (const Clock::Time end = Soon(); open_ != count && MsUntil(end) > 0;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(open_, count);
  }
  // Checks that the server still answers.
  void Read(Peer& peer) {
    peer.Call("Read", Ticket());
    peer.Frame(FrameType::kMessage, EncodeReadRequest({.run = "run", .samples = {{.sample = "none"}}}));
    const auto answer = peer.Hear();
    ASSERT_TRUE(answer);
    ASSERT_OK_AND_ASSIGN(const auto response, ParseReadResponse(answer->chain()));
    EXPECT_EQ(response.records.at(0).status, SampleStatus::kNotFound);
    EXPECT_OK(peer.End());
  }

  ServerConfig config_;
  AccessControl access_;
  ByteBudget budget_{int64_t{64} << 20};
  std::unique_ptr<Store> store_ = NewMemoryStore({.budget = &budget_});
  Metrics metrics_;
  std::atomic<int> open_{0};
  std::unique_ptr<ServiceContext> context_;
  std::unique_ptr<DirectServer> server_;
};

TEST_F(SharedMemoryTest, ACallGoesOverMemoryThatIsPaidFor) {
  Start();
  auto peer = ConnectWithMemory();
  EXPECT_EQ(context_->shared_memory.used(), int64_t{SharedRings::kBytes});
  for (int i = 0; i < 3; ++i) Read(*peer);
  peer->Call("", Ticket());
  EXPECT_OK(peer->End());
  peer.reset();
  AwaitOpen(0);
  EXPECT_EQ(context_->shared_memory.used(), 0);
}

TEST_F(SharedMemoryTest, WhoseTicketIsNoneGetsNone) {
  Start();
  auto peer = Connect();
  peer->Call("", std::string(16, '\0'), /*shared_memory=*/true);
  EXPECT_TRUE(absl::IsUnavailable(peer->End()));
  EXPECT_EQ(context_->shared_memory.used(), 0);
}

TEST_F(SharedMemoryTest, WhereNoneIsLeftTheSocketStays) {
  config_.memory_budget = 1 << 20;
  Start();
  std::vector<std::unique_ptr<Peer>> peers;
  const int64_t most = context_->shared_memory.limit() / int64_t{SharedRings::kBytes};
  while (static_cast<int64_t>(peers.size()) < most) peers.push_back(ConnectWithMemory());
  auto late = Connect();
  EXPECT_FALSE(late->AskForMemory(Ticket()));
  Read(*late);
  peers.pop_back();
  AwaitOpen(static_cast<int>(most));
  EXPECT_TRUE(late->AskForMemory(Ticket()));
  Read(*late);
}

TEST_F(SharedMemoryTest, AppendsAreLongerThanTheRing) {
  Start();
  auto peer = ConnectWithMemory();
  peer->BeginAppend(Ticket());
  std::string rows(3 << 20, '\1');
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<char>(i % 251 % kExperts);
  EXPECT_OK(peer->Append(1, rows));
}

TEST_F(SharedMemoryTest, WhoLiesLosesItsConnectionAlone) {
  Start();
  auto good = ConnectWithMemory();
  for (const uint64_t lie : {uint64_t{SharedRings::kRingBytes} * 2, uint64_t{1} << 63, ~uint64_t{0}}) {
    auto idle = ConnectWithMemory();
    idle->Lie(lie);
    EXPECT_FALSE(idle->Hear());
    auto in_call = ConnectWithMemory();
    in_call->BeginAppend(Ticket());
    in_call->Lie(lie);
    // The client sees the call's end, unless the memory is gone before.
    const absl::Status end = in_call->End();
    EXPECT_TRUE(absl::IsInvalidArgument(end) || absl::IsAborted(end)) << end;
    Read(*good);
  }
  AwaitOpen(1);
  EXPECT_EQ(context_->shared_memory.used(), int64_t{SharedRings::kBytes});
}

TEST_F(SharedMemoryTest, WhoDiesInTheMiddleOfAWriteLeavesNothing) {
  Start();
  auto good = ConnectWithMemory();
  const int64_t before = budget_.used();
  auto dying = ConnectWithMemory();
  dying->BeginAppend(Ticket());
  dying->Say(EncodeFrame(FrameType::kMessage, 0, 4 << 20) + std::string(1000, '\1'));
  dying.reset();
  AwaitOpen(1);
  Read(*good);
  EXPECT_EQ(budget_.used(), before);
}

// Bytes change while the server reads them. What it stores is what it has checked.
TEST_F(SharedMemoryTest, WhatIsStoredIsWhatWasChecked) {
  Start();
  auto peer = ConnectWithMemory();
  peer->BeginAppend(Ticket());
  constexpr size_t kRows = 1000;
  constexpr int kAppends = 500;
  std::atomic<bool> stop{false};
  std::thread scribbler([&] {
    const absl::Span<uint8_t> ring = peer->ring();
    for (uint8_t round = 0; !stop; ++round) {
      // Changes expert ids from 5, which is valid, to 255, which is not, and sometimes back. It never changes a header,
      // because no header contains these two bytes.
      for (size_t at = 0; at < ring.size(); ++at) {
        volatile uint8_t& byte = ring[at];
        if (byte == 5) byte = 0xFF;
        if (byte == 0xFF && round % 2 == 1) byte = 5;
      }
    }
  });
  int stored = 0, rejected = 0;
  std::unique_ptr<Peer> reader = ConnectWithMemory();
  for (uint64_t id = 1; id <= kAppends; ++id) {
    const absl::Status status = peer->Append(id, std::string(kRows, '\5'));
    if (absl::IsAborted(status)) break;
    ++(status.ok() ? stored : rejected);
    if (!status.ok()) continue;
    reader->Call("Read", Ticket());
    reader->Frame(FrameType::kMessage,
                  EncodeReadRequest({.run = "run", .samples = {{.sample = absl::StrCat("s", id)}}}));
    const auto answer = reader->Hear();
    ASSERT_TRUE(answer);
    ASSERT_OK_AND_ASSIGN(const auto response, ParseReadResponse(answer->chain()));
    const ByteChain chain = answer->chain();
    std::vector<uint8_t> bytes(chain.size());
    ChainCursor(chain).CopyTo(absl::MakeSpan(bytes));
    // All rows, one byte each, at the end of the message.
    const auto rows = absl::MakeConstSpan(bytes).last(kRows);
    ASSERT_EQ(std::count(rows.begin(), rows.end(), 5), static_cast<std::ptrdiff_t>(kRows)) << id;
    EXPECT_OK(reader->End());
  }
  stop = true;
  scribbler.join();
  RecordProperty("stored", stored);
  RecordProperty("rejected", rejected);
  EXPECT_GT(stored + rejected, 0);
  Read(*reader);
}

}  // namespace
}  // namespace routing_replay::server
