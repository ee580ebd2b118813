// routing-replay-server.
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "routing_replay/wire/allocator.h"
#include "server/config/config.h"
#include "server/log/event_log.h"
#include "server/server.h"

namespace routing_replay::server {
namespace {

constexpr int kExitConfig = 2;
constexpr int kExitListen = 3;
constexpr int kExitNoProcess = 4;

// Signals are taken by sigwait in the main thread only: gRPC must not be shut down from a handler.
sigset_t BlockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signals;
}

// Sends this process a SIGTERM when process `pid` ends. Uses a pidfd, because a process number can be reused. Its
// thread runs until this process ends.
absl::Status FollowProcess(int pid) {
  if (pid == 0) return absl::OkStatus();
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (process < 0 && errno == ESRCH) return absl::NotFoundError(absl::StrCat("process ", pid, " does not exist"));
  if (process < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot watch process ", pid));
  std::thread([process] {
    pollfd ended{.fd = process, .events = POLLIN, .revents = 0};
    while (poll(&ended, 1, -1) < 0 && errno == EINTR) {
    }
    kill(getpid(), SIGTERM);
  }).detach();
  return absl::OkStatus();
}

// Waits for `longest`, or until one of `signals` arrives: Serve took the first, so this is a second one.
void WaitForSignal(const sigset_t& signals, std::chrono::milliseconds longest) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(longest);
  const timespec timeout = {.tv_sec = seconds.count(), .tv_nsec = std::chrono::nanoseconds(longest - seconds).count()};
  if (longest.count() > 0) sigtimedwait(&signals, nullptr, &timeout);
}

// True if SIGTERM or SIGINT is pending. It stays pending, so that sigwait takes it later.
bool StopRequested() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1;
}

void Warn(const std::string& line) { LogEvent(LogLevel::kWarning, "warning", line); }

// Raises the limit of file descriptors to the hard limit, because new connections must wait when none is free.
void RaiseDescriptorLimit() {
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  descriptors.rlim_cur = descriptors.rlim_max;
  setrlimit(RLIMIT_NOFILE, &descriptors);
}

int Serve(const ServerConfig& config) {
  RaiseDescriptorLimit();
  const sigset_t signals = BlockStopSignals();
  if (absl::Status followed = FollowProcess(config.exit_with_pid); !followed.ok()) {
    LogEvent(LogLevel::kError, "exit", followed.message(), {{"key", "exit-with-pid"}});
    return kExitNoProcess;
  }
  auto server = Server::Start(config, Clock::Real(), Warn, StopRequested);
  if (absl::IsCancelled(server.status())) {
    LogEvent(LogLevel::kInfo, "stopped", server.status().message());
    return 0;
  }
  if (!server.ok()) {
    LogEvent(LogLevel::kError, "exit", server.status().message());
    return kExitListen;
  }
  LogEvent(LogLevel::kInfo, "started", (*server)->StartLine());
  for (const std::string& warning : (*server)->warnings()) Warn(warning);
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  LogEvent(LogLevel::kInfo, "draining", "", {{"signal", int64_t{signal_number}}});
  (*server)->Drain();
  WaitForSignal(signals, config.drain_delay);
  (*server)->Shutdown(config.drain_timeout);
  server->reset();  // The store writes what is still pending.
  LogEvent(LogLevel::kInfo, "stopped", "");
  return 0;
}

int Main(int argc, char** argv) {
  StartLogging(isatty(STDERR_FILENO) ? LogFormat::kText : LogFormat::kJson);
  LogLinesOfLibraries();
  auto config = ParseServerConfig(argc, argv);
  if (config.status().code() == absl::StatusCode::kCancelled) {
    std::fputs(std::string(config.status().message()).c_str(), stdout);
    return 0;
  }
  if (!config.ok()) {
    LogEvent(LogLevel::kError, "exit", config.status().message());
    return kExitConfig;
  }
  SetLogLevel(config->log_level).IgnoreError();  // The parser accepts only valid levels.
  for (const std::string& warning : config->warnings) Warn(warning);
  if (config->print_config) {
    std::fputs(ToYaml(*config).c_str(), stdout);
  } else if (config->check_config) {
    std::fputs("the configuration is valid\n", stdout);
  }
  if (config->print_config || config->check_config) return 0;
  TuneAllocator();
  mallopt(M_ARENA_MAX, 2);  // With one arena per thread, freed blocks would stay with the thread that freed them.
  return Serve(*config);
}

}  // namespace
}  // namespace routing_replay::server

int main(int argc, char** argv) {
  const int status = routing_replay::server::Main(argc, argv);
  routing_replay::server::FlushLog();
  return status;
}
