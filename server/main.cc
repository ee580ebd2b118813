// routing-replay-server.
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>

#include "routing_replay/wire/allocator.h"
#include "server/config.h"
#include "server/operations/descriptor_limit.h"
#include "server/operations/log/event_log.h"
#include "server/operations/log/grpc_lines.h"
#include "server/operations/process_watch.h"
#include "server/server.h"

namespace routing_replay::server {
namespace {

constexpr int kExitConfig = 2;
constexpr int kExitListen = 3;
constexpr int kExitNoProcess = 4;
constexpr int kExitUnreachable = 5;

// Two arenas: freed blocks are used again instead of staying with the thread that freed them.
void TuneServerAllocator() {
  TuneAllocator();
  mallopt(M_ARENA_MAX, 2);
}

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

// The end of the process counts as a SIGTERM. Null where none is named.
absl::StatusOr<std::unique_ptr<ProcessWatch>> WatchProcess(int pid) {
  if (pid == 0) return nullptr;
  return ProcessWatch::Start(pid, [] { kill(getpid(), SIGTERM); });
}

// A further signal ends the wait: whoever sent it is in a hurry.
void WaitForSignal(const sigset_t& signals, std::chrono::milliseconds longest) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(longest);
  const timespec timeout = {.tv_sec = seconds.count(), .tv_nsec = std::chrono::nanoseconds(longest - seconds).count()};
  if (longest.count() > 0) sigtimedwait(&signals, nullptr, &timeout);
}

// A signal that has come stays for whoever takes it.
bool StopRequested() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1;
}

void Warn(const std::string& line) { LogEvent(LogLevel::kWarning, "warning", line); }

// Where none is left, connections wait.
void TakeDescriptors() {
  const int64_t limit = RaiseDescriptorLimit();
  LogEvent(limit < kFewDescriptors ? LogLevel::kWarning : LogLevel::kDebug, "descriptor_limit",
           limit < kFewDescriptors ? "few connections can be open; raise the hard limit (ulimit -Hn, LimitNOFILE)" : "",
           {{"limit", limit}});
}

int Serve(const ServerConfig& config) {
  TakeDescriptors();
  const sigset_t signals = BlockStopSignals();
  const auto watch = WatchProcess(config.exit_with_pid);
  if (!watch.ok()) {
    LogEvent(LogLevel::kError, "exit", watch.status().message(), {{"key", "exit-with-pid"}});
    return kExitNoProcess;
  }
  // Counts as a SIGTERM; whoever started the server sees by its status that it is to be started again.
  std::atomic<bool> unreachable{false};
  const auto end = [&unreachable] {
    if (!unreachable.exchange(true)) kill(getpid(), SIGTERM);
  };
  auto server = Server::Start(config, Clock::Real(), Warn, StopRequested, end);
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
  server->reset();  // What the store has yet to write is written now.
  if (unreachable) {
    LogEvent(LogLevel::kError, "exit", "no listener answered for about a minute, which only a new start mends");
    return kExitUnreachable;
  }
  LogEvent(LogLevel::kInfo, "stopped", "");
  return 0;
}

int Main(int argc, char** argv) {
  StartLogging(ChooseLogFormat("auto"));
  LogGrpcLines();
  auto config = ParseServerConfig(argc, argv);
  if (config.status().code() == absl::StatusCode::kCancelled) {
    std::fputs(std::string(config.status().message()).c_str(), stdout);
    return 0;
  }
  if (!config.ok()) {
    LogEvent(LogLevel::kError, "exit", config.status().message());
    return kExitConfig;
  }
  StartLogging(ChooseLogFormat(config->log_format));
  SetLogLevel(config->log_level).IgnoreError();  // The parser takes no other.
  for (const std::string& warning : config->warnings) Warn(warning);
  if (config->print_config) {
    std::fputs(ToYaml(*config).c_str(), stdout);
  } else if (config->check_config) {
    std::fputs("the configuration is good\n", stdout);
  }
  if (config->print_config || config->check_config) return 0;
  if (config->allocator == "tuned") TuneServerAllocator();
  return Serve(*config);
}

}  // namespace
}  // namespace routing_replay::server

int main(int argc, char** argv) {
  const int status = routing_replay::server::Main(argc, argv);
  routing_replay::server::FlushLog();
  return status;
}
