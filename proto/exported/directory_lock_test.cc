// One export at a time in a directory, and none where no lock can be taken.
#include "proto/exported/directory_lock.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <random>

#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

class DirectoryLockTest : public ::testing::Test {
 protected:
  DirectoryLockTest() { std::filesystem::create_directories(directory_); }
  ~DirectoryLockTest() override { std::filesystem::remove_all(directory_); }

  absl::StatusCode Code(DirectoryLock::FlockFunction flock) {
    return DirectoryLock::Take(directory_, flock).status().code();
  }

  const std::filesystem::path directory_ =
      std::filesystem::path(::testing::TempDir()) / ("directory_lock_" + std::to_string(std::random_device()()));
};

template <int kError>
int FailingFlock(int, int) {
  errno = kError;
  return -1;
}

TEST_F(DirectoryLockTest, OneHoldsIt) {
  {
    const auto lock = DirectoryLock::Take(directory_);
    ASSERT_OK(lock);
    EXPECT_EQ(DirectoryLock::Take(directory_).status().code(), absl::StatusCode::kAborted);
  }
  EXPECT_OK(DirectoryLock::Take(directory_));
}

TEST_F(DirectoryLockTest, WhereThereAreNoLocksItIsRefused) {
  const auto refused = DirectoryLock::Take(directory_, FailingFlock<ENOSYS>);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.status().message().find("-o flock"), std::string::npos) << refused.status();
  for (const auto flock :
       {FailingFlock<EBADF>, FailingFlock<ENOTSUP>, FailingFlock<ENOLCK>, FailingFlock<EINVAL>, FailingFlock<EPERM>}) {
    EXPECT_EQ(Code(flock), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(Code(FailingFlock<EWOULDBLOCK>), absl::StatusCode::kAborted);
  EXPECT_EQ(Code(FailingFlock<EIO>), absl::StatusCode::kInternal);
}

TEST_F(DirectoryLockTest, AChildThatWasForkedMeanwhileDoesNotHoldItOn) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  pid_t child = -1;
  {
    const auto lock = DirectoryLock::Take(directory_);
    ASSERT_OK(lock);
    child = fork();
    if (child == 0) {
      close(pipe_ends[1]);
      char byte = 0;
      _exit(read(pipe_ends[0], &byte, 1) < 0);
    }
  }
  EXPECT_OK(DirectoryLock::Take(directory_));
  close(pipe_ends[1]);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(pipe_ends[0]);
}

TEST_F(DirectoryLockTest, WhatIsNoFileIsNotOpened) {
  const std::filesystem::path path = directory_ / kExportLock;
  std::filesystem::create_directory(path);
  EXPECT_EQ(DirectoryLock::Take(directory_).status().code(), absl::StatusCode::kAlreadyExists);
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(DirectoryLock::Take(directory_).status().code(), absl::StatusCode::kAlreadyExists);
  std::filesystem::remove(path);
  std::filesystem::create_symlink(directory_ / "elsewhere", path);
  EXPECT_EQ(DirectoryLock::Take(directory_).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_FALSE(std::filesystem::exists(directory_ / "elsewhere"));
}

}  // namespace
}  // namespace routing_replay
