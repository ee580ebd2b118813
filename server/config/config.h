// Configuration of routing-replay-server. Every key is a flag, a YAML key and a variable: --memory-budget,
// memory-budget:, RR_MEMORY_BUDGET. A flag wins over a variable, a variable over the file.
#ifndef SERVER_CONFIG_CONFIG_H_
#define SERVER_CONFIG_CONFIG_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/security/served_tls.h"

namespace routing_replay::server {

struct ServerConfig {
  std::vector<std::string> listen = {"127.0.0.1:7400"};  // host:port, [v6]:port or unix:PATH; port 0: any free one.
  std::string advertise;                                 // What OpenRun tells clients; empty: the first listener.
  std::string endpoint_file;     // Holds the advertised address while the server listens; written atomically.
  int exit_with_pid = 0;         // The server ends when this process does; 0: it does not look.
  std::string store = "memory";  // As OpenStore names it.
  std::string durability;  // Of runs that ask for none: "memory", "written", "synced"; empty: what the store does.
  int64_t memory_budget = int64_t{4} << 30;
  std::string spill_directory;               // Of the store memory: where cold samples go; empty: nowhere.
  int64_t spill_budget = int64_t{64} << 30;  // Of that directory.
  std::chrono::milliseconds drain_timeout = std::chrono::seconds(15);
  // Between the moment when the server says that it is not ready and when it rejects new calls.
  std::chrono::milliseconds drain_delay{0};
  int threads = 2;  // Completion-queue threads of data calls.
  std::string log_level = "info";
  TlsFiles tls;                   // Of every listener but unix: ones, which stay plaintext.
  bool insecure = false;          // Plaintext on other than loopback addresses is meant.
  std::string token_file;         // See security/token_file.h; empty: everybody may do everything.
  std::string operations_listen;  // Of the HTTP port: host:port, [v6]:port. Empty: none.
  std::string health_listen;      // Of gRPC's health service alone; always plaintext. Empty: none.
  int64_t run_budget = 0;         // Bytes that one run may take; 0: no limit.
  int64_t run_streams = 0;        // Append calls, and as many Read calls, of one run at a time; 0: no limit.
  int64_t max_connections_per_address = 1000;       // Of max_connections.
  std::chrono::milliseconds max_connection_age{0};  // An older connection is asked to end; 0: it may last.

  // What no setting changes; tests make it smaller.
  // One message of the standard hand-off is 4 MiB. 64 of them would fill a server of 4 GiB before any credit counts.
  int64_t max_message_bytes = int64_t{64} << 20;
  int64_t max_payload_bytes = int64_t{256} << 20;  // Of one append after decompression: four of the longest messages.
  int64_t stream_window_bytes = int64_t{32}
                                << 20;            // Credit of one append stream: eight messages of 4 MiB on their way.
  int64_t read_message_bytes = int64_t{2} << 20;  // Of a read message: longer ones are no faster (tests/bench).
  std::chrono::milliseconds max_wait = std::chrono::minutes(10);  // Of a waiting read. Its client asks again.
  // A reader that takes nothing for this long, or a request that takes longer to come, is cut off: 64 MiB come in it
  // over 5 Mbit/s.
  std::chrono::milliseconds stall_timeout = std::chrono::minutes(2);
  std::chrono::milliseconds max_deadline = std::chrono::hours(1);  // Of a call but Append, whatever its caller says.
  std::chrono::milliseconds default_ttl = std::chrono::hours(24);  // Of runs that do not say.
  // At least max_deadline, so that no read is cut off in the middle.
  std::chrono::milliseconds max_connection_age_grace = std::chrono::hours(1);
  std::chrono::milliseconds sweep_interval = std::chrono::seconds(1);  // Of expired samples.
  int64_t max_runs = 10000;                                            // A run that holds nothing takes 20 to 50 kB.
  int max_streams = 256;                                               // Calls of one connection at a time.
  int64_t max_connections = 10000;  // And no more than a quarter of the descriptors; an idle one takes 15 to 30 kB.

  std::vector<std::string> warnings;  // What is allowed and hardly meant.

  // What the process was asked to do instead of serving.
  bool check_config = false;
  bool print_config = false;
};

// Parses flags, variables and the file that --config or RR_CONFIG names. INVALID_ARGUMENT naming the key; CANCELLED
// with the text to print for --help and --version.
absl::StatusOr<ServerConfig> ParseServerConfig(int argc, const char* const* argv);

// The configuration as YAML that ParseServerConfig accepts.
std::string ToYaml(ServerConfig config);

}  // namespace routing_replay::server

#endif  // SERVER_CONFIG_CONFIG_H_
