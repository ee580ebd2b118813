// routing-replay-server with small values of limits that have no setting, so that tests can reach them:
//
//   limited_server --max-deadline 2s --max-runs 4 --listen 127.0.0.1:0 …
#include <malloc.h>
#include <pthread.h>
#include <signal.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "routing_replay/wire/allocator.h"
#include "server/log/event_log.h"
#include "server/server.h"

namespace routing_replay::testing {
namespace {

// If `name` is one of these limits, sets its value and returns true.
bool SetLimit(absl::string_view name, const std::string& value, server::ServerConfig& config) {
  for (auto& [known, time] :
       {std::pair("--stall-timeout", &config.stall_timeout), std::pair("--max-deadline", &config.max_deadline),
        std::pair("--max-connection-age-grace", &config.max_connection_age_grace)}) {
    absl::Duration duration;
    if (name != known || !absl::ParseDuration(value, &duration)) continue;
    *time = absl::ToChronoMilliseconds(duration);
    return true;
  }
  if (name == "--max-message-bytes") return absl::SimpleAtoi(value, &config.max_message_bytes);
  if (name == "--max-runs") return absl::SimpleAtoi(value, &config.max_runs);
  if (name == "--max-streams") return absl::SimpleAtoi(value, &config.max_streams);
  return false;
}

int Main(int argc, char** argv) {
  server::StartLogging(server::LogFormat::kJson);
  server::ServerConfig limits;
  std::vector<const char*> rest;
  for (int i = 0; i < argc; ++i) {
    if (i + 1 < argc && SetLimit(argv[i], argv[i + 1], limits)) {
      ++i;
    } else {
      rest.push_back(argv[i]);
    }
  }
  auto config = server::ParseServerConfig(static_cast<int>(rest.size()), rest.data());
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", config.status().ToString().c_str());
    return 2;
  }
  config->stall_timeout = limits.stall_timeout;
  config->max_deadline = limits.max_deadline;
  config->max_connection_age_grace = limits.max_connection_age_grace;
  config->max_message_bytes = limits.max_message_bytes;
  config->max_runs = limits.max_runs;
  config->max_streams = limits.max_streams;
  TuneAllocator();
  mallopt(M_ARENA_MAX, 2);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  const auto server = server::Server::Start(*config);
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.status().ToString().c_str());
    return 3;
  }
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  (*server)->Shutdown(config->drain_timeout);
  return 0;
}

}  // namespace
}  // namespace routing_replay::testing

int main(int argc, char** argv) { return routing_replay::testing::Main(argc, argv); }
