#include "proto/wire/ring/ring_stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/wire/message/frame.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;

Clock::Time Soon() { return DeadlineAfter(Clock::Real().Now(), std::chrono::seconds(60)); }

absl::Status AdmitAll(const Frame&) { return absl::OkStatus(); }

// Both ends of a connection in this process; each has its own mapping of the memory.
class RingStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> sockets;
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()), 0);
    auto made = SharedRings::Make();
    ASSERT_OK(made);
    memory_ = made->fd;
    auto mapped = SharedRings::Map(memory_);
    ASSERT_OK(mapped);
    server_ = std::make_unique<RingStream>(std::make_unique<SocketStream>(sockets[0]), std::move(made->rings));
    client_ = std::make_unique<RingStream>(std::make_unique<SocketStream>(sockets[1]), *std::move(mapped));
  }
  ~RingStreamTest() override { close(memory_); }

  // Overwrites a position in the shared memory, as a faulty other end could.
  void Lie(off_t at, uint64_t position) const {
    ASSERT_EQ(pwrite(memory_, &position, sizeof(position), at), static_cast<ssize_t>(sizeof(position)));
  }
  static size_t Say(ByteStream& stream, std::string bytes) {
    const iovec piece{bytes.data(), bytes.size()};
    const auto written = stream.Write({&piece, 1});
    EXPECT_OK(written);
    return written.value_or(0);
  }
  static absl::StatusOr<std::string> Hear(ByteStream& stream) {
    std::string bytes(100, '\0');
    const iovec space{bytes.data(), bytes.size()};
    const auto read = stream.Read({&space, 1});
    if (!read.ok()) return read.status();
    bytes.resize(*read);
    return bytes;
  }
  // Writes until there is no room.
  static void Overfill(ByteStream& stream) {
    while (Say(stream, std::string(10000, 'x')) > 0) continue;
  }

  std::unique_ptr<RingStream> server_, client_;
  int memory_ = -1;
};

void Send(ByteStream& stream, FrameWriter& writer) {
  while (true) {
    ASSERT_OK(writer.SendTo(stream));
    if (writer.done()) return;
    ASSERT_GT(MsUntil(Soon()), 0);
    stream.Wait(stream.write_events(), Soon());
  }
}

ReceivedFrame Receive(ByteStream& stream, FrameReader& reader) {
  while (!reader.done()) {
    const auto bytes = stream.ReadBy(reader.Space(), Soon());
    EXPECT_OK(bytes);
    EXPECT_OK(reader.Advance(*bytes));
  }
  return reader.Take();
}

// Sends messages of 3 MiB, which are longer than a ring, and messages of less than 1 KB. Each one is answered.
TEST_F(RingStreamTest, FramesGoThroughAndAreAnswered) {
  constexpr int kMessages = 300;
  const auto message = [](int i) { return std::string(i % 3 == 0 ? 3 << 20 : i % 1000, static_cast<char>(i)); };
  std::thread server([&] {
    FrameReader reader(AdmitAll);
    FrameWriter writer;
    for (int i = 0; i < kMessages; ++i) {
      const ReceivedFrame frame = Receive(*server_, reader);
      std::string text(frame.chain().size(), '\0');
      ChainCursor(frame.chain()).CopyTo({reinterpret_cast<uint8_t*>(text.data()), text.size()});
      ASSERT_TRUE(text == message(i)) << i;
      writer.Put(FrameType::kMessage, std::move(text), {}, /*in_parts=*/false);
      Send(*server_, writer);
    }
  });
  FrameReader reader(AdmitAll);
  FrameWriter writer;
  for (int i = 0; i < kMessages; ++i) {
    const std::string text = message(i);
    const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    writer.Put(FrameType::kMessage, "", {&bytes, 1}, /*in_parts=*/true);
    Send(*client_, writer);
    EXPECT_TRUE(Receive(*client_, reader).header() == text) << i;
  }
  server.join();
}

TEST_F(RingStreamTest, WhatWasSaidIsHeardAfterTheEnd) {
  Say(*client_, "last words");
  client_.reset();
  EXPECT_EQ(*Hear(*server_), "last words");
  EXPECT_EQ(Hear(*server_).status(), absl::UnavailableError("the peer closed the connection"));
}

TEST_F(RingStreamTest, WhoWaitsForRoomHearsOfTheEnd) {
  Overfill(*server_);
  client_.reset();
  const std::string more = "more";
  const iovec piece{const_cast<char*>(more.data()), more.size()};
  server_->Wait(server_->write_events(), Soon());
  EXPECT_EQ(server_->Write({&piece, 1}).status(), absl::UnavailableError("the peer closed the connection"));
}

TEST_F(RingStreamTest, ABrokenEndWakesWhoReads) {
  std::thread other([&] { client_->Break(); });
  absl::StatusOr<size_t> read = 0;
  char byte = 0;
  const iovec space{&byte, 1};
  while (read.ok()) read = client_->ReadBy({&space, 1}, Soon());
  EXPECT_EQ(read.status(), absl::UnavailableError("the peer closed the connection"));
  other.join();
  EXPECT_EQ(Hear(*server_).status(), absl::UnavailableError("the peer closed the connection"));
}

// The client fills the socket with wake-up bytes for which there is nothing to read. Neither end blocks.
TEST_F(RingStreamTest, WakesWithoutEndAreWakes) {
  const std::string wakes(1 << 16, 'w');
  while (send(client_->fd(), wakes.data(), wakes.size(), MSG_DONTWAIT) > 0) continue;
  EXPECT_EQ(*Hear(*server_), "");
  Say(*client_, "there");
  EXPECT_EQ(*Hear(*server_), "there");
}

// An end that waits for both directions checks both after a wake-up, because one socket serves both.
TEST_F(RingStreamTest, WhatWakesOneWayIsNotLostForTheOther) {
  Overfill(*server_);
  EXPECT_FALSE(server_->HasRoom());
  while (!Hear(*client_)->empty()) continue;  // Wakes the server's writer …
  EXPECT_EQ(*Hear(*server_), "");             // … but the server's reader consumes the wake-up.
  EXPECT_TRUE(server_->HasRoom());
  Overfill(*server_);
  Say(*client_, "there");
  EXPECT_EQ(Say(*server_, "more"), 0);
  EXPECT_TRUE(server_->HasBytes());
  EXPECT_EQ(*Hear(*server_), "there");
}

TEST_F(RingStreamTest, WhoSaysThatItWaitsIsWoken) {
  pollfd wait{.fd = server_->fd(), .events = POLLIN, .revents = 0};
  Say(*client_, "there");
  EXPECT_EQ(poll(&wait, 1, 0), 0);
  EXPECT_EQ(*Hear(*server_), "there");
  EXPECT_FALSE(server_->HasBytes());  // All bytes were read, but no read found the ring empty yet.
  Say(*client_, "more");
  EXPECT_EQ(poll(&wait, 1, 0), 1);
}

TEST_F(RingStreamTest, WhoLiesIsNotListenedTo) {
  constexpr off_t kReadOfServer = 64, kWrittenByClient = 128;  // The server writes the first ring.
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  Say(*client_, "there");
  for (const uint64_t lie : {SharedRings::kRingBytes + 1, ~size_t{0}, size_t{1} << 63}) {
    Lie(kWrittenByClient, lie);
    EXPECT_THAT(Hear(*server_), Fails(kInvalid, Reason::kEncoding)) << lie;
    Lie(kReadOfServer, lie - SharedRings::kRingBytes);
    const std::string answer = "answer";
    const iovec piece{const_cast<char*>(answer.data()), answer.size()};
    EXPECT_THAT(server_->Write({&piece, 1}), Fails(kInvalid, Reason::kEncoding)) << lie;
  }
  Lie(kWrittenByClient, 5);
  EXPECT_EQ(*Hear(*server_), "there");
}

class MemoryTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets_.data()), 0); }
  ~MemoryTest() override {
    for (const int fd : sockets_) close(fd);
  }

  std::array<int, 2> sockets_;
};

TEST_F(MemoryTest, ADescriptorGoesToTheOtherEnd) {
  auto made = SharedRings::Make();
  ASSERT_OK(made);
  EXPECT_TRUE(SendMemory(sockets_[0], made->fd));
  close(made->fd);
  const auto fd = ReceiveMemory(sockets_[1]);
  ASSERT_OK(fd);
  EXPECT_NE(fcntl(*fd, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_OK(SharedRings::Map(*fd));
  close(*fd);
}

TEST_F(MemoryTest, NoneIsSaid) {
  EXPECT_TRUE(SendMemory(sockets_[0], -1));
  const auto fd = ReceiveMemory(sockets_[1]);
  ASSERT_OK(fd);
  EXPECT_EQ(*fd, -1);
}

TEST_F(MemoryTest, OneThatIsPromisedMustCome) {
  for (const char promise : {'\xD2', '\3'}) {  // The second begins a frame.
    ASSERT_EQ(send(sockets_[0], &promise, 1, 0), 1);
    EXPECT_TRUE(absl::IsUnavailable(ReceiveMemory(sockets_[1]).status()));
  }
  close(std::exchange(sockets_[0], -1));
  EXPECT_TRUE(absl::IsUnavailable(ReceiveMemory(sockets_[1]).status()));
}

}  // namespace
}  // namespace routing_replay
