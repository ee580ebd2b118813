// The server of the quick start: routing-replay-server on a free port of the loopback interface.
#ifndef TESTS_QUICKSTART_SERVER_PROCESS_H_
#define TESTS_QUICKSTART_SERVER_PROCESS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/quickstart/process.h"

namespace routing_replay::quickstart {

struct ServerProcess {
  std::unique_ptr<ChildProcess> process;
  std::string endpoint;  // "127.0.0.1:PORT"
};

// Returns when the server listens. The server writes its endpoint file to `directory`.
absl::StatusOr<ServerProcess> StartServer(const std::string& program, const std::string& directory,
                                          const std::vector<std::string>& more_flags = {});

// Sends SIGTERM, which drains the server. INTERNAL unless it exits with status 0.
absl::Status StopServer(ServerProcess& server);

}  // namespace routing_replay::quickstart

#endif  // TESTS_QUICKSTART_SERVER_PROCESS_H_
