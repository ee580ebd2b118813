#include "tests/quickstart/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"

namespace routing_replay::quickstart {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int kCannotRun = 127;  // A shell's status for a command that it cannot run.

absl::Status SystemError(absl::string_view what) {
  return absl::InternalError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// Runs in the child after fork: makes the pipes its standard input and output. Returns false if this fails, or if the
// parent has exited already. If the parent exits later, the kernel kills the child.
bool TakePipes(pid_t parent, int input, int output) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  return getppid() == parent && dup2(input, STDIN_FILENO) >= 0 && dup2(output, STDOUT_FILENO) >= 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const std::string& name,
                                                                  const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  // Between fork and exec the child may only make async-signal-safe calls.
  return Fork(name, [&argv] { return execv(argv[0], argv.data()) == 0 ? 0 : kCannotRun; });
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Fork(const std::string& name,
                                                                 const std::function<int()>& role) {
  int to_child[2], from_child[2];
  if (pipe2(to_child, O_CLOEXEC) != 0) return SystemError("pipe");
  if (pipe2(from_child, O_CLOEXEC) != 0) {
    close(to_child[0]);
    close(to_child[1]);
    return SystemError("pipe");
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) _exit(TakePipes(parent, to_child[0], from_child[1]) ? role() : kCannotRun);
  const int fork_error = errno;
  close(to_child[0]);
  close(from_child[1]);
  if (pid < 0) {
    close(to_child[1]);
    close(from_child[0]);
    errno = fork_error;
    return SystemError("fork");
  }
  return std::unique_ptr<ChildProcess>(new ChildProcess(name, pid, to_child[1], from_child[0]));
}

ChildProcess::~ChildProcess() {
  close(input_);
  close(output_);
  if (!running()) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

absl::Status ChildProcess::WriteLine(absl::string_view line) {
  const std::string text = absl::StrCat(line, "\n");
  // Commands are shorter than PIPE_BUF, so a write is atomic.
  if (write(input_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) return SystemError(name_);
  return absl::OkStatus();
}

absl::StatusOr<std::string> ChildProcess::ReadLine(std::chrono::milliseconds timeout) {
  const SteadyClock::time_point deadline = SteadyClock::now() + timeout;
  for (;;) {
    if (const size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - SteadyClock::now());
    pollfd ready{output_, POLLIN, 0};
    const int events = left.count() > 0 ? poll(&ready, 1, static_cast<int>(left.count())) : 0;
    if (events == 0) return absl::DeadlineExceededError(absl::StrCat(name_, " did not answer in time"));
    char buffer[4096];
    const ssize_t bytes = events < 0 ? -1 : read(output_, buffer, sizeof(buffer));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return SystemError(name_);
    if (bytes == 0) return absl::UnavailableError(absl::StrCat(name_, " ended early"));
    unread_.append(buffer, static_cast<size_t>(bytes));
  }
}

bool ChildProcess::running() {
  if (!ended_) ended_ = waitpid(pid_, &wait_status_, WNOHANG) == pid_;
  return !ended_;
}

absl::Status ChildProcess::WaitForSuccess(std::chrono::milliseconds timeout) {
  const SteadyClock::time_point deadline = SteadyClock::now() + timeout;
  while (running() && SteadyClock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (!ended_) return absl::InternalError(absl::StrCat(name_, " did not end in time"));
  if (WIFEXITED(wait_status_) && WEXITSTATUS(wait_status_) == 0) return absl::OkStatus();
  if (WIFSIGNALED(wait_status_)) {
    return absl::InternalError(absl::StrCat(name_, " was ended by signal ", WTERMSIG(wait_status_)));
  }
  return absl::InternalError(absl::StrCat(name_, " ended with status ", WEXITSTATUS(wait_status_)));
}

void ChildProcess::Terminate() {
  if (running()) kill(pid_, SIGTERM);
}

}  // namespace routing_replay::quickstart
