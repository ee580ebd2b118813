#include "proto/wire/ring/shared_rings.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <random>
#include <string>
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

// This process has both ends of the rings: the maker's, and the one that maps the same memory.
class SharedRingsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = SharedRings::Make();
    ASSERT_OK(made);
    maker_ = std::move(made->rings);
    fd_ = made->fd;
    auto mapped = SharedRings::Map(fd_);
    ASSERT_OK(mapped);
    other_ = *std::move(mapped);
  }
  ~SharedRingsTest() override { close(fd_); }

  static void Say(SharedRings& from, std::string bytes) {
    const iovec piece{bytes.data(), bytes.size()};
    EXPECT_EQ(from.writer().Write({&piece, 1}).value_or(0), bytes.size());
  }
  static std::string Hear(SharedRings& at) {
    std::string bytes(100, '\0');
    const iovec space{bytes.data(), bytes.size()};
    const auto read = at.reader().Read({&space, 1});
    EXPECT_OK(read);
    bytes.resize(read.value_or(0));
    return bytes;
  }
  int64_t Held() const {
    struct stat is {};
    EXPECT_EQ(fstat(fd_, &is), 0);
    return int64_t{is.st_blocks} * 512;
  }

  std::unique_ptr<SharedRings> maker_, other_;
  int fd_ = -1;
};

TEST_F(SharedRingsTest, EachWayHasItsRing) {
  Say(*maker_, "there");
  Say(*other_, "and back");
  EXPECT_EQ(Hear(*other_), "there");
  EXPECT_EQ(Hear(*maker_), "and back");
  EXPECT_EQ(Hear(*other_), "");
}

TEST_F(SharedRingsTest, NobodyChangesItsSizeOrItsSeals) {
  for (const size_t size : {size_t{0}, SharedRings::kBytes - 4096, SharedRings::kBytes + 4096}) {
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(size)), -1);
    EXPECT_EQ(errno, EPERM);
  }
  // With such a seal, a client could keep the server from freeing the memory.
  for (const int seal : {F_SEAL_WRITE, F_SEAL_FUTURE_WRITE}) {
    EXPECT_EQ(fcntl(fd_, F_ADD_SEALS, seal), -1);
    EXPECT_EQ(errno, EPERM);
  }
}

TEST_F(SharedRingsTest, TheMemoryGoesWithItsMakerWhoeverElseHasIt) {
  EXPECT_EQ(Held(), static_cast<int64_t>(SharedRings::kBytes));
  Say(*maker_, "there");
  maker_.reset();
  EXPECT_EQ(Held(), 0);
  std::string bytes(100, 'x');
  const iovec space{bytes.data(), bytes.size()};
  EXPECT_EQ(other_->reader().Read({&space, 1}).value_or(1), 0);
  other_.reset();
  EXPECT_LE(Held(), 4096);
}

// The maker frees the memory while the other end copies bytes. The rest of the memory then reads as zeros, which the
// reader must report as an error and never return as data.
TEST_F(SharedRingsTest, WhatIsTakenAwayWhileItIsReadIsAnError) {
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    auto made = SharedRings::Make();
    ASSERT_OK(made);
    auto other = SharedRings::Map(made->fd);
    close(made->fd);
    ASSERT_OK(other);
    const std::string sent(SharedRings::kRingBytes, 'x');
    const iovec piece{const_cast<char*>(sent.data()), sent.size()};
    while (*made->rings->writer().Write({&piece, 1}) > 0) continue;
    std::thread away([&] { made->rings.reset(); });
    std::string bytes(SharedRings::kRingBytes, '\0');
    const iovec space{bytes.data(), bytes.size()};
    while (true) {
      const auto read = (*other)->reader().Read({&space, 1});
      if (!read.ok() || *read == 0) break;
      ASSERT_EQ(bytes.find_first_not_of("x"), *read == bytes.size() ? std::string::npos : *read);
      std::fill(bytes.begin(), bytes.end(), '\0');
    }
    away.join();
  }
}

TEST_F(SharedRingsTest, TheOtherEndTakesNothingAway) {
  Say(*maker_, "there");
  other_.reset();
  EXPECT_EQ(Held(), static_cast<int64_t>(SharedRings::kBytes));
  auto again = SharedRings::Map(fd_);
  ASSERT_OK(again);
  EXPECT_EQ(Hear(**again), "there");
}

TEST_F(SharedRingsTest, AHoleReadsAsZeros) {
  Say(*other_, "there");
  ASSERT_EQ(fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SharedRings::kBytes), 0);
  EXPECT_EQ(Hear(*maker_), "");
  Say(*other_, " and more");  // Its write position still fits the reader's position, so this is no error.
  EXPECT_EQ(Hear(*maker_), std::string(5, '\0') + " and more");
}

TEST_F(SharedRingsTest, AChildTouchesNothing) {
  Say(*maker_, "there");
  const pid_t child = fork();
  if (child == 0) {
    maker_.reset();
    other_.reset();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Hear(*other_), "there");
}

TEST(SharedRingsMapTest, OnlyWhatMakeGivesOutIsMapped) {
  const int plain = memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(ftruncate(plain, SharedRings::kBytes), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(SharedRings::Map(plain).status()));  // Not sealed: it could shrink.
  const int small = memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(fcntl(small, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(SharedRings::Map(small).status()));
  const int file = open("/dev/zero", O_RDWR | O_CLOEXEC);
  EXPECT_TRUE(absl::IsInvalidArgument(SharedRings::Map(file).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(SharedRings::Map(-1).status()));
  for (const int fd : {plain, small, file}) close(fd);
}

}  // namespace
}  // namespace routing_replay
