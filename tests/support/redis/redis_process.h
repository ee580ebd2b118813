// Real redis-server processes on the loopback interface, each with its own data directory.
#ifndef TESTS_SUPPORT_REDIS_REDIS_PROCESS_H_
#define TESTS_SUPPORT_REDIS_REDIS_PROCESS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/store/redis/client/redis_connection.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/server_process.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)

// Empty, or the reason why tests that need a redis-server cannot run here.
std::string NoRedisReason();

// Two free ports: for clients and for the cluster's own traffic.
struct RedisPorts {
  uint16_t client;
  uint16_t cluster;
};
absl::StatusOr<RedisPorts> FreeRedisPorts();

// A server that is killed when this object is destroyed, or when the thread that started it ends (the test's main
// thread). Nothing is saved to disk. Not thread-safe.
class RedisProcess {
 public:
  // `settings`: further arguments of redis-server. `endpoint`: the login; its seed is replaced by `host`, which must be
  // this machine. Returns when the server answers.
  static absl::StatusOr<std::unique_ptr<RedisProcess>> Start(const std::vector<std::string>& settings = {},
                                                             RedisEndpoint endpoint = {},
                                                             const std::string& host = "127.0.0.1");

  // A replica of this server, which must not be part of a cluster nor require a login. Returns when the replica has
  // caught up.
  absl::StatusOr<std::unique_ptr<RedisProcess>> StartReplica() const;

  const RedisEndpoint& endpoint() const { return endpoint_; }
  const RedisAddress& address() const { return endpoint_.seeds.front(); }
  RedisPorts ports() const { return ports_; }
  // Not after Kill.
  pid_t pid() const { return process_->pid(); }
  // Not after Kill.
  void Signal(int signal) const { process_->Signal(signal); }
  // Stops the server like Process::Pause. Not after Kill.
  void Pause() const { process_->Pause(); }
  // Kills the process, as a crash would.
  void Kill() { process_.reset(); }
  // Starts the killed server again, with the same ports and directory.
  absl::Status Restart();
  // Sends one command over a new connection.
  absl::StatusOr<RedisReply> Ask(const RedisCommand& command) const;

 private:
  RedisProcess(RedisPorts ports, std::vector<std::string> settings, RedisEndpoint endpoint);
  absl::Status Run();
  absl::Status AwaitAnswer();

  const RedisPorts ports_;
  const std::vector<std::string> settings_;
  RedisEndpoint endpoint_;
  const ScratchDirectory directory_;
  TlsContext tls_;
  std::unique_ptr<Process> process_;
};

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_REDIS_REDIS_PROCESS_H_
