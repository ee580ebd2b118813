#include "server/operations/process_watch.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <future>

#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

pid_t StartSleeper() {
  const pid_t pid = fork();
  if (pid == 0) {
    pause();
    _exit(0);
  }
  return pid;
}

void Kill(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

TEST(ProcessWatchTest, TellsOfTheEnd) {
  const pid_t pid = StartSleeper();
  std::promise<void> ended;
  ASSERT_OK_AND_ASSIGN(const auto watch, ProcessWatch::Start(pid, [&] { ended.set_value(); }));
  Kill(pid);
  ended.get_future().wait();
}

TEST(ProcessWatchTest, DestroyedItIsSilent) {
  const pid_t pid = StartSleeper();
  ASSERT_OK_AND_ASSIGN(auto watch, ProcessWatch::Start(pid, [] { ADD_FAILURE(); }));
  watch.reset();
  Kill(pid);
}

TEST(ProcessWatchTest, NoSuchProcess) {
  const pid_t pid = StartSleeper();
  Kill(pid);
  EXPECT_EQ(ProcessWatch::Start(pid, [] {}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace routing_replay::server
