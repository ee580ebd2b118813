// Configuration of routing-replay-server. Each setting can be given as a flag, an environment variable or a key of a
// YAML file: --memory-budget, RR_MEMORY_BUDGET, memory-budget:. A flag wins over a variable, a variable over the file.
#ifndef SERVER_CONFIG_CONFIG_H_
#define SERVER_CONFIG_CONFIG_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/security/served_tls.h"

namespace routing_replay::server {

struct ServerConfig {
  // host:port, [v6]:port or unix:PATH; port 0: any free one.
  std::vector<std::string> listen = {"127.0.0.1:7400"};
  std::string direct_listen;  // Address of the direct path: host:port, [v6]:port, or kOff; empty: see DirectListenerOf.
  std::string advertise;      // Address reported to clients, or kShard and a list of servers.
  std::string endpoint_file;  // Holds the server's address (Server::advertised) until it drains; written atomically.
  int exit_with_pid = 0;      // When the process with this number ends, the server ends, too. 0: off.
  std::string store = "memory";  // As for OpenStore.
  std::string durability;  // For runs that ask for none: "memory", "written", "synced"; empty: the store's default.
  int64_t memory_budget = int64_t{4} << 30;
  std::string spill_directory;               // For the store "memory": directory for cold samples; empty: none.
  int64_t spill_budget = int64_t{64} << 30;  // Limit of that directory.
  std::chrono::milliseconds drain_timeout = std::chrono::seconds(15);
  // Time from SIGTERM, when the server reports "not ready", until it rejects new calls.
  std::chrono::milliseconds drain_delay{0};
  int threads = 2;  // Event-loop threads for Append, Put and Read; the direct path has as many of its own.
  std::string log_level = "info";
  TlsFiles tls;                                     // For all listeners except unix: ones and health_listen.
  bool insecure = false;                            // Allows plaintext on addresses that are not loopback.
  std::string token_file;                           // See security/token_file.h; empty: everybody may do everything.
  std::string operations_listen;                    // Address of the HTTP port: host:port, [v6]:port. Empty: none.
  std::string health_listen;                        // Address of gRPC's health service; always plaintext. Empty: none.
  int64_t run_budget = 0;                           // Bytes that one run may take; 0: no limit.
  int64_t max_connections_per_address = 1000;       // Open connections of one client address.
  std::chrono::milliseconds max_connection_age{0};  // An older gRPC connection is asked to end; 0: off.

  // The members from here to max_connections are not settings; only tests change them. max_message_bytes is 16 times
  // the usual size of an append message (4 MiB). It must not be much larger, because messages take memory before credit
  // is checked: 64 of the longest fill a server of 4 GiB.
  int64_t max_message_bytes = int64_t{64} << 20;
  int64_t max_payload_bytes = int64_t{256} << 20;   // For one append, after decompression: 4 x max_message_bytes.
  int64_t stream_window_bytes = int64_t{32} << 20;  // Credit of one append stream: eight usual messages in transfer.
  int64_t read_message_bytes = int64_t{2} << 20;    // Size of a read message; longer ones are not faster (tests/bench).
  std::chrono::milliseconds max_wait = std::chrono::minutes(10);  // Longest wait of a read. Its client then asks again.
  // A call is cut off if its client reads nothing for this long, or if a request takes longer to arrive. At 5 Mbit/s, a
  // message of 64 MiB arrives in this time.
  std::chrono::milliseconds stall_timeout = std::chrono::minutes(2);
  // Longest duration of a read, even if the caller's deadline is later.
  std::chrono::milliseconds max_deadline = std::chrono::hours(1);
  std::chrono::milliseconds default_ttl = std::chrono::hours(24);  // For runs that set none.
  // At max_connection_age plus this time, open calls are cut off. At least max_deadline, so that no read is cut off.
  std::chrono::milliseconds max_connection_age_grace = std::chrono::hours(1);
  std::chrono::milliseconds sweep_interval = std::chrono::seconds(1);  // How often expired samples are removed.
  int64_t max_runs = 10000;                                            // An empty run takes 20 to 50 kB.
  int max_streams = 256;                                               // Calls of one connection at a time.
  int64_t max_connections = 10000;  // Lowered to 1/4 of the open-file limit. An idle connection takes 15 to 30 kB.

  std::vector<std::string> warnings;  // Settings that are allowed but probably a mistake.

  // Set if the process should only check or print the configuration, and then exit.
  bool check_config = false;
  bool print_config = false;
};

// Prefix of ServerConfig::advertise if the rest is a list of servers. Clients then spread each run over all of them.
inline constexpr absl::string_view kShard = "shard:";

// Value of ServerConfig::direct_listen that turns the direct path off.
inline constexpr absl::string_view kOff = "off";
// The direct path's default port is 7403 if gRPC's is 7400. The ports in between are left for operations and health.
inline constexpr int kDirectPortsAbove = 3;

// The TCP address of the direct path, on which clients append and read without gRPC.
struct DirectListener {
  std::string address;       // host:port or [v6]:port; empty if gRPC has no TCP listener either.
  bool or_any_port = false;  // The port is only a default: if it is in use, any free port is taken.
};
// If direct_listen is empty: the first TCP address of gRPC, with kDirectPortsAbove added to its port. If gRPC has none,
// returns an empty address without TLS, and nothing with TLS. Returns nothing, too, if the direct path is off.
std::optional<DirectListener> DirectListenerOf(const ServerConfig& config);

// Parses flags, variables and the file that --config or RR_CONFIG names. INVALID_ARGUMENT naming the key; CANCELLED
// with the text to print for --help and --version.
absl::StatusOr<ServerConfig> ParseServerConfig(int argc, const char* const* argv);

// The configuration as YAML that ParseServerConfig accepts.
std::string ToYaml(ServerConfig config);

}  // namespace routing_replay::server

#endif  // SERVER_CONFIG_CONFIG_H_
