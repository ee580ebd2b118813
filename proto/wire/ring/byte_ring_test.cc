#include "proto/wire/ring/byte_ring.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <random>
#include <thread>
#include <vector>

#include "proto/wire/buffer.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// A ring, with both ends in this process.
struct Ring {
  explicit Ring(size_t capacity) : bytes(capacity), writer(state, bytes.span()), reader(state, bytes.span()) {}

  size_t Write(absl::Span<const iovec> pieces) {
    const auto written = writer.Write(pieces);
    EXPECT_OK(written);
    return written.value_or(0);
  }
  size_t Write(size_t size) {
    std::vector<uint8_t> some(size, 7);
    return Write({{some.data(), some.size()}});
  }
  size_t Read(absl::Span<const iovec> space) {
    const auto read = reader.Read(space);
    EXPECT_OK(read);
    return read.value_or(0);
  }
  size_t Read(size_t size) {
    std::vector<uint8_t> some(size);
    return Read({{some.data(), some.size()}});
  }

  RingState state{};
  Buffer bytes;
  RingWriter writer;
  RingReader reader;
};

// `bytes`, cut into pieces of which some are empty.
std::vector<iovec> Cut(std::vector<uint8_t>& bytes, std::mt19937& random) {
  std::vector<iovec> pieces;
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = std::min<size_t>(random() % 9, bytes.size() - at);
    pieces.push_back({bytes.data() + at, size});
    at += size;
  }
  return pieces;
}

TEST(ByteRingTest, BytesComeOutAsTheyWentIn) {
  std::mt19937 random(1);
  Ring ring(64);
  std::deque<uint8_t> inside;
  for (int i = 0; i < 100000; ++i) {
    std::vector<uint8_t> bytes(random() % 100);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    if (random() % 2 == 0) {
      const size_t written = ring.Write(Cut(bytes, random));
      ASSERT_EQ(written, std::min(bytes.size(), 64 - inside.size()));
      inside.insert(inside.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(written));
    } else {
      const size_t read = ring.Read(Cut(bytes, random));
      ASSERT_EQ(read, std::min(bytes.size(), inside.size()));
      ASSERT_TRUE(std::equal(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(read), inside.begin()));
      inside.erase(inside.begin(), inside.begin() + static_cast<std::ptrdiff_t>(read));
    }
  }
}

TEST(ByteRingTest, WhoDoesNotWaitIsNotWoken) {
  Ring ring(64);
  ring.Write(10);
  EXPECT_FALSE(ring.writer.MustWake(/*last=*/true));
  EXPECT_FALSE(*ring.reader.Wait());  // There are bytes already.
  ring.Write(10);
  EXPECT_FALSE(ring.writer.MustWake(/*last=*/true));
  ring.Read(20);
  EXPECT_FALSE(ring.reader.MustWake());
}

TEST(ByteRingTest, AReaderIsWokenOnceByTheLastOrByHalf) {
  Ring ring(64);
  EXPECT_TRUE(*ring.reader.Wait());
  ring.Write(1);
  EXPECT_FALSE(ring.writer.MustWake(/*last=*/false));
  EXPECT_TRUE(ring.writer.MustWake(/*last=*/true));
  ring.Write(1);
  EXPECT_FALSE(ring.writer.MustWake(/*last=*/true));
  ring.Read(2);
  EXPECT_TRUE(*ring.reader.Wait());
  ring.Write(31);
  EXPECT_FALSE(ring.writer.MustWake(/*last=*/false));
  ring.Write(1);
  EXPECT_TRUE(ring.writer.MustWake(/*last=*/false));
}

TEST(ByteRingTest, AWriterIsWokenOnceWhenHalfIsFree) {
  Ring ring(64);
  EXPECT_FALSE(*ring.writer.Wait());
  ring.Write(64);
  EXPECT_TRUE(*ring.writer.Wait());
  ring.Read(31);
  EXPECT_FALSE(ring.reader.MustWake());
  ring.Read(1);
  EXPECT_TRUE(ring.reader.MustWake());
  ring.Read(1);
  EXPECT_FALSE(ring.reader.MustWake());
}

TEST(ByteRingTest, PositionsThatLieAreErrors) {
  std::vector<uint8_t> bytes(200);
  const iovec all{bytes.data(), bytes.size()};
  constexpr uint64_t kHere = 10, kFar = uint64_t{1} << 63;  // 10 bytes were written, and read.
  for (const uint64_t lie : {kHere - 1, kHere + 65, kHere + 1000, kHere + kFar, uint64_t{0}, ~uint64_t{0}}) {
    Ring ring(64);
    ring.Write(kHere);
    ring.Read(kHere);
    ring.state.written = lie;
    ring.state.writer_waits = 1;
    ring.reader.MustWake();
    EXPECT_THAT(ring.reader.Read({&all, 1}), Fails(kInvalid, Reason::kEncoding)) << lie;
    EXPECT_THAT(ring.reader.Wait(), Fails(kInvalid, Reason::kEncoding)) << lie;
  }
  for (const uint64_t lie : {kHere + 1, kHere - 65, kHere + 1000, kHere + kFar}) {
    Ring ring(64);
    ring.Write(kHere);
    ring.state.read = lie;
    EXPECT_THAT(ring.writer.Write({&all, 1}), Fails(kInvalid, Reason::kEncoding)) << lie;
    EXPECT_THAT(ring.writer.Wait(), Fails(kInvalid, Reason::kEncoding)) << lie;
  }
}

// Wakes the other end through an eventfd, as between processes.
class Bell {
 public:
  Bell() : fd_(eventfd(0, EFD_CLOEXEC)) {}
  ~Bell() { close(fd_); }
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  void Ring() { eventfd_write(fd_, 1); }
  void Wait() {
    pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&wait, 1, 60'000), 1) << "nobody wakes the end that waits";
    eventfd_t times = 0;
    eventfd_read(fd_, &times);
  }

 private:
  const int fd_;
};

// Two threads send bytes through a ring, and each sleeps until the other wakes it when the ring is full or empty. With
// a small ring that happens all the time, so a lost wake-up would block the test.
TEST(ByteRingTest, NoWakeIsLost) {
  for (const size_t capacity : {64, 4096, 1 << 18}) {
    Ring ring(capacity);
    Bell for_reader, for_writer;
    const uint64_t total = std::min<uint64_t>(capacity * 4000, 64 << 20);
    std::thread writer([&] {
      std::mt19937 random(2);
      std::vector<uint8_t> bytes(capacity);
      for (uint64_t sent = 0; sent < total && !::testing::Test::HasFatalFailure();) {
        const size_t size = std::min<uint64_t>(random() % capacity + 1, total - sent);
        for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>((sent + i) * 0x9E3779B1 >> 24);
        const iovec piece{bytes.data(), size};
        const size_t written = ring.Write({&piece, 1});
        sent += written;
        if (written > 0 && ring.writer.MustWake(written == size)) for_reader.Ring();
        if (written == 0 && *ring.writer.Wait()) for_writer.Wait();
      }
    });
    std::mt19937 random(3);
    std::vector<uint8_t> bytes(capacity);
    for (uint64_t came = 0; came < total && !::testing::Test::HasFatalFailure();) {
      const iovec space{bytes.data(), random() % capacity + 1};
      const size_t read = ring.Read({&space, 1});
      for (size_t i = 0; i < read; ++i) {
        ASSERT_EQ(bytes[i], static_cast<uint8_t>((came + i) * 0x9E3779B1 >> 24)) << came + i;
      }
      came += read;
      if (read > 0 && ring.reader.MustWake()) for_writer.Ring();
      if (read == 0 && *ring.reader.Wait()) for_reader.Wait();
    }
    writer.join();
  }
}

}  // namespace
}  // namespace routing_replay
