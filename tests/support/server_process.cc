#include "tests/support/server_process.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/scratch_directory.h"

extern char** environ;

namespace routing_replay::testing {
namespace {

constexpr std::chrono::milliseconds kPoll(5);
constexpr std::chrono::seconds kStartTimeout(20);

// Reserves a port of the loopback interface while this program runs, even after the server on it was killed, so that a
// client that still tries it does not reach another test's server. The options let the server bind the port beside this
// socket, which never listens.
int ReservePort() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t size = sizeof address;
  if (socket < 0 || setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      setsockopt(socket, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0 ||
      bind(socket, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return 0;
  }
  return ntohs(address.sin_port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Process>> Process::Start(const std::vector<std::string>& arguments,
                                                        const std::string& log) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (!log.empty()) {
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  }
  pid_t pid;
  const int failed = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return absl::NotFoundError(absl::StrCat("cannot start ", arguments[0]));
  return std::unique_ptr<Process>(new Process(pid));
}

Process::~Process() {
  Signal(SIGKILL);
  if (!reaped_) waitpid(pid_, nullptr, 0);
}

void Process::Signal(int signal) const {
  if (!reaped_) kill(pid_, signal);
}

void Process::Pause() const {
  Signal(SIGSTOP);
  siginfo_t stopped;
  if (!reaped_) waitid(P_PID, static_cast<id_t>(pid_), &stopped, WSTOPPED | WEXITED | WNOWAIT);
}

absl::StatusOr<int> Process::Wait(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (std::chrono::steady_clock::now() < deadline) {
    int status;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      reaped_ = true;
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    std::this_thread::sleep_for(kPoll);
  }
  return absl::DeadlineExceededError(absl::StrCat("process ", pid_, " is still running"));
}

absl::StatusOr<ServerProcess> StartServerProcess(const std::string& program, std::vector<std::string> flags,
                                                 const std::string& log) {
  const ScratchDirectory directory;
  const std::string file = directory.path() + "/endpoint";
  flags.insert(flags.begin(),
               {program, "--listen", absl::StrCat("127.0.0.1:", ReservePort()), "--endpoint-file", file});
  auto process = Process::Start(flags, log);
  if (!process.ok()) return process.status();
  ServerProcess server{*std::move(process), ""};
  const auto deadline = std::chrono::steady_clock::now() + kStartTimeout;
  while (server.endpoint.empty() && std::chrono::steady_clock::now() < deadline) {
    std::ifstream(file) >> server.endpoint;
    if (server.endpoint.empty()) std::this_thread::sleep_for(kPoll);
  }
  if (server.endpoint.empty()) return absl::DeadlineExceededError("the server did not come up");
  return server;
}

absl::StatusOr<int64_t> ProcessMemory(pid_t pid, const std::string& figure) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, figure + ":")) return std::atoll(line.c_str() + figure.size() + 1) * 1024;
  }
  return absl::NotFoundError(figure);
}

}  // namespace routing_replay::testing
