// routing-replay-server.
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "routing_replay/wire/allocator.h"
#include "server/config.h"
#include "server/operations/process_watch.h"
#include "server/server.h"

namespace routing_replay {
namespace {

constexpr int kExitConfig = 2;
constexpr int kExitListen = 3;
constexpr int kExitNoProcess = 4;

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

int Serve(const ServerConfig& config) {
  const sigset_t signals = BlockStopSignals();
  const auto watch = WatchProcess(config.exit_with_pid);
  if (!watch.ok()) {
    spdlog::error("--exit-with-pid: {}", std::string(watch.status().message()));
    return kExitNoProcess;
  }
  auto server = Server::Start(config, Clock::Real(), [](const std::string& line) { spdlog::warn("{}", line); });
  if (!server.ok()) {
    spdlog::error("{}", std::string(server.status().message()));
    return kExitListen;
  }
  spdlog::info("{}", (*server)->StartLine());
  for (const std::string& warning : (*server)->warnings()) spdlog::warn("{}", warning);
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  spdlog::info("draining after signal {}", signal_number);
  (*server)->Shutdown(config.drain_timeout);
  spdlog::info("stopped");
  return 0;
}

int Main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_logger_mt("server"));
  auto config = ParseServerConfig(argc, argv);
  if (config.status().code() == absl::StatusCode::kCancelled) {
    std::fputs(std::string(config.status().message()).c_str(), stdout);
    return 0;
  }
  if (!config.ok()) {
    spdlog::error("{}", std::string(config.status().message()));
    return kExitConfig;
  }
  spdlog::set_level(spdlog::level::from_str(config->log_level));
  if (config->print_config) std::fputs(ToYaml(*config).c_str(), stdout);
  if (config->print_config || config->check_config) return 0;
  if (config->allocator == "tuned") TuneServerAllocator();
  return Serve(*config);
}

}  // namespace
}  // namespace routing_replay

int main(int argc, char** argv) { return routing_replay::Main(argc, argv); }
