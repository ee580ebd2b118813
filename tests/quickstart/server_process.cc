#include "tests/quickstart/server_process.h"

#include <chrono>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace routing_replay::quickstart {
namespace {

constexpr std::chrono::seconds kStartTimeout(30);
constexpr std::chrono::seconds kStopTimeout(30);

}  // namespace

absl::StatusOr<ServerProcess> StartServer(const std::string& program, const std::string& directory,
                                          const std::vector<std::string>& more_flags) {
  const std::string endpoint_file = absl::StrCat(directory, "/endpoint");
  std::vector<std::string> command{program, "--listen", "127.0.0.1:0", "--endpoint-file", endpoint_file};
  command.insert(command.end(), more_flags.begin(), more_flags.end());
  absl::StatusOr<std::unique_ptr<ChildProcess>> process = ChildProcess::Start("server", command);
  if (!process.ok()) return process.status();
  ServerProcess server{*std::move(process), ""};
  const auto deadline = std::chrono::steady_clock::now() + kStartTimeout;
  while (std::chrono::steady_clock::now() < deadline) {
    if (std::ifstream file(endpoint_file); std::getline(file, server.endpoint) && !server.endpoint.empty()) {
      return server;
    }
    if (!server.process->running()) return absl::UnavailableError(absl::StrCat(program, " ended at once"));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return absl::DeadlineExceededError(absl::StrCat(program, " did not begin to listen"));
}

absl::Status StopServer(ServerProcess& server) {
  server.process->Terminate();
  return server.process->WaitForSuccess(kStopTimeout);
}

}  // namespace routing_replay::quickstart
