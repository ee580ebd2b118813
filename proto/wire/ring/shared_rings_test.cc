#include "proto/wire/ring/shared_rings.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <thread>

#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

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
