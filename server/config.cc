#include "server/config.h"

#include <sys/stat.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <climits>
#include <cstdlib>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "proto/wire/local_address.h"
#include "proto/wire/nearest.h"
#include "server/quantity.h"
#include "server/security/access_control.h"
#include "server/store/open_store.h"

namespace routing_replay::server {
namespace {

using std::chrono::milliseconds;

// What a quantity may be, in bytes or milliseconds.
constexpr Bounds kMemoryBytes = {1 << 20, INT64_MAX};
constexpr Bounds kPartBytes = {64 << 10, INT64_MAX};
constexpr Bounds kReadMessageBytes = {64 << 10, 4 << 20};
constexpr Bounds kRunBytes = {4 << 10, INT64_MAX, /*or_none=*/true};
constexpr Bounds kMessageBytes = {64 << 10, INT_MAX};  // gRPC takes an int.
// Far from where adding one to the present time overflows.
constexpr int64_t kMaxTime = int64_t{30} * 24 * 3600 * 1000;
constexpr Bounds kTimeOrNone = {0, kMaxTime};
constexpr Bounds kSweepTime = {10, kMaxTime};
constexpr Bounds kSeconds = {1000, kMaxTime};
constexpr Bounds kSecondsOrNone = {1000, kMaxTime, /*or_none=*/true};

// One place that names every key: flags, YAML and variables are made from it.
class Parser {
 public:
  explicit Parser(ServerConfig& config) : config_(config) {
    app_.set_version_flag("--version", ROUTING_REPLAY_VERSION);
    app_.add_option("--config", config_file_, "YAML file with any of the keys below")->envname("RR_CONFIG");
    Key("listen", config_.listen, "addresses to listen on: host:port, [v6]:port or unix:PATH");
    Key("advertise", config_.advertise, "address that clients are told");
    Key("endpoint-file", config_.endpoint_file, "file that holds the advertised address while the server listens");
    Key("exit-with-pid", config_.exit_with_pid, "process with which the server ends, as after SIGTERM; 0: none")
        ->check(CLI::NonNegativeNumber);
    Key("store", config_.store,
        "memory; rocksdb:DIRECTORY, which survives a restart; or redis://HOST:PORT,… (rediss:// with TLS), a Redis or "
        "Valkey server or cluster that any number of servers share");
    Key("durability", config_.durability,
        "what an acknowledged append has come through in runs that ask for nothing: memory, written (to the operating "
        "system) or synced (to the disk); by default written, with the store memory: memory");
    BytesKey("memory-budget", config_.memory_budget, kMemoryBytes,
             "bytes of routing data held and on their way; with rocksdb a quarter, at most 4 GiB, is its cache");
    Key("spill-directory", config_.spill_directory,
        "directory to which the store memory moves sealed samples that were not used for long, from three quarters of "
        "the memory budget on; its files are removed at every start");
    BytesKey("spill-budget", config_.spill_budget, kMemoryBytes,
             "bytes that the files in the spill directory may take");
    TimeKey("default-ttl", config_.default_ttl, kSeconds,
            "a sample idle for so long is removed, where its run does not say");
    TimeKey("sweep-interval", config_.sweep_interval, kSweepTime, "how often idle samples are looked for");
    BytesKey("max-message-bytes", config_.max_message_bytes, kMessageBytes, "largest message that is received");
    BytesKey("max-payload-bytes", config_.max_payload_bytes, kPartBytes, "largest append, after decompression");
    BytesKey("stream-window-bytes", config_.stream_window_bytes, kPartBytes, "credit that one append stream may hold");
    BytesKey("read-message-bytes", config_.read_message_bytes, kReadMessageBytes, "size of the messages of a read");
    TimeKey("max-wait", config_.max_wait, kSeconds, "longest wait of a waiting read");
    TimeKey("stall-timeout", config_.stall_timeout, kSeconds,
            "a reader that takes nothing for so long, or a request that takes so long to come, is cut off");
    TimeKey("drain-timeout", config_.drain_timeout, kTimeOrNone, "time for calls in flight after SIGTERM");
    Key("threads", config_.threads,
        "threads that serve connections; where a store waits for a disk or a network, others wait for it")
        ->check(CLI::Range(1, 256));
    Key("verify", config_.verify, "check encoded blocks for duplicate ids too");
    Key("allocator", config_.allocator, "tuned: freed memory is kept for the next message; default: glibc's own way")
        ->check(CLI::IsMember({"tuned", "default"}));
    Key("log-level", config_.log_level, "debug, info, warning or error")
        ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
    Key("tls-cert", config_.tls.certificate, "certificate chain of the listeners, PEM; empty: plaintext");
    Key("tls-key", config_.tls.key, "its private key, PEM");
    Key("tls-client-ca", config_.tls.client_ca, "PEM; clients must show a certificate that this authority signed");
    TimeKey("tls-reload-interval", config_.tls_reload_interval, kSeconds, "how often these files are read again");
    FlagKey("insecure", config_.insecure, "listen without TLS on addresses that are not loopback");
    Key("token-file", config_.token_file,
        "hashes of the tokens that clients must show and what each may do; read again when it changes (rrctl token "
        "makes entries); empty: everybody may do everything");
    Key("operations-listen", config_.operations_listen,
        "address of the HTTP port with /metrics, /healthz, /readyz and /statusz; empty: none");
    Key("health-listen", config_.health_listen,
        "address of gRPC's health service (names live and ready), always plaintext; empty: none");
    FlagKey("reflection", config_.reflection, "serve gRPC's reflection on the listeners");
    FlagKey("channelz", config_.channelz, "serve gRPC's channelz on the health port");
    FlagKey("run-metrics", config_.run_metrics, "metrics of the 100 largest runs, labelled with their names");
    TimeKey("drain-delay", config_.drain_delay, kTimeOrNone,
            "time after SIGTERM in which calls are still taken while the server says that it is not ready");
    Key("log-format", config_.log_format, "json: a line of JSON per event; text; auto: text on a terminal, else json")
        ->check(CLI::IsMember({"auto", "json", "text"}));
    BytesKey("run-budget", config_.run_budget, kRunBytes, "bytes that one run may take; 0: as many as there are");
    Key("run-streams", config_.run_streams, "Append calls, and as many Read calls, of one run at a time; 0: no limit")
        ->check(CLI::NonNegativeNumber);
    Key("max-runs", config_.max_runs, "runs that there may be at a time")->check(CLI::PositiveNumber);
    Key("max-streams", config_.max_streams, "calls of one connection at a time")->check(CLI::Range(1, 1 << 20));
    Key("max-connections", config_.max_connections,
        "connections of clients at a time, at most a quarter of the descriptors; more are closed at once")
        ->check(CLI::PositiveNumber);
    Key("max-connections-per-address", config_.max_connections_per_address,
        "connections of one address (IPv6: of one /64 network) at a time; raise it where clients come through a proxy")
        ->check(CLI::PositiveNumber);
    TimeKey("max-deadline", config_.max_deadline, kSeconds, "longest time of a call; none for Append streams");
    TimeKey("max-connection-age", config_.max_connection_age, kSecondsOrNone,
            "a connection that is older is asked to end, so that clients of a name (dns:///) find servers that were "
            "added; 0: none is");
    TimeKey("max-connection-age-grace", config_.max_connection_age_grace, kSeconds,
            "time for the calls of such a connection before it is cut off; at least max-deadline");
    app_.add_flag("--check-config", config_.check_config, "check the configuration and exit");
    app_.add_flag("--print-config", config_.print_config, "print the configuration as YAML and exit");
  }

  // The file is found first, its values become the defaults, then flags and variables are read over them.
  void Parse(int argc, const char* const* argv) {
    const std::string file = ConfigFile(argc, argv);
    if (!file.empty()) ApplyFile(file);
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ExtrasError&) {
      throw CLI::ValidationError(Unknown(app_.remaining().front()));
    }
  }

  // Others may have an RR_ of their own (Kubernetes makes RR_PORT for a service named rr), so these are no faults.
  std::vector<std::string> UnknownVariables() const {
    std::vector<std::string> known = {"RR_CONFIG"};
    for (const std::string& key : keys_) known.push_back(Variable(key));
    std::vector<std::string> warnings;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const absl::string_view text = *entry;
      const absl::string_view name = text.substr(0, text.find('='));
      if (!absl::StartsWith(name, "RR_") || std::find(known.begin(), known.end(), name) != known.end()) continue;
      warnings.push_back(absl::StrCat("a variable is ignored: ", ThereIsNo("setting", name, known)));
    }
    std::sort(warnings.begin(), warnings.end());
    return warnings;
  }

  // What CLI11 would print for --help or --version.
  std::string Text(const CLI::Success& done) const {
    std::ostringstream out;
    app_.exit(done, out, out);
    return out.str();
  }

 private:
  template <typename T>
  CLI::Option* Key(const std::string& key, T& value, const std::string& help) {
    keys_.push_back(key);
    return app_.add_option("--" + key, value, help)->capture_default_str()->envname(Variable(key));
  }
  // "--key" alone means true.
  void FlagKey(const std::string& key, bool& value, const std::string& help) {
    keys_.push_back(key);
    app_.add_flag("--" + key, value, help)->envname(Variable(key));
  }
  void BytesKey(const std::string& key, int64_t& value, Bounds bounds, const std::string& help) {
    keys_.push_back(key);
    app_.add_option_function<std::string>(
            "--" + key, [=, &value](const std::string& text) { value = OrThrow(key, ParseBytes(text, bounds)); }, help)
        ->default_str(BytesText(value))
        ->envname(Variable(key));
  }
  void TimeKey(const std::string& key, milliseconds& value, Bounds bounds, const std::string& help) {
    keys_.push_back(key);
    app_.add_option_function<std::string>(
            "--" + key, [=, &value](const std::string& text) { value = OrThrow(key, ParseTime(text, bounds)); }, help)
        ->default_str(TimeText(value))
        ->envname(Variable(key));
  }
  template <typename T>
  static T OrThrow(const std::string& key, const absl::StatusOr<T>& value) {
    if (!value.ok()) throw CLI::ValidationError(absl::StrCat("--", key, ": ", value.status().message()));
    return *value;
  }
  // Of a word that the command line has too much.
  std::string Unknown(const std::string& word) const {
    std::vector<std::string> flags;
    for (const std::string& key : keys_) flags.push_back("--" + key);
    return ThereIsNo(absl::StartsWith(word, "-") ? "flag" : "argument", word.substr(0, word.find('=')), flags);
  }
  static std::string Variable(const std::string& key) {
    return absl::StrCat("RR_", absl::AsciiStrToUpper(absl::StrReplaceAll(key, {{"-", "_"}})));
  }

  static std::string ConfigFile(int argc, const char* const* argv) {
    for (int i = 1; i < argc; ++i) {
      const absl::string_view argument = argv[i];
      if (argument == "--config" && i + 1 < argc) return argv[i + 1];
      if (absl::StartsWith(argument, "--config=")) return std::string(argument.substr(9));
    }
    const char* variable = std::getenv("RR_CONFIG");
    return variable == nullptr ? "" : variable;
  }

  // The streams of the library throw what is not a YAML::Exception where `path` is a directory.
  static YAML::Node LoadFile(const std::string& path) {
    try {
      return YAML::LoadFile(path);
    } catch (const std::exception& error) {
      throw CLI::ValidationError(absl::StrCat("--config: ", path, ": ", error.what()));
    }
  }

  // Reads the file through the options themselves, so that each key has one parser and one set of checks.
  void ApplyFile(const std::string& path) {
    const YAML::Node file = LoadFile(path);
    if (file.IsNull()) return;
    if (!file.IsMap()) throw CLI::ValidationError(path + ": not a mapping of keys");
    for (const auto& entry : file) {
      const auto key = entry.first.as<std::string>();
      if (std::find(keys_.begin(), keys_.end(), key) == keys_.end()) {
        throw CLI::ValidationError(absl::StrCat(path, ": ", ThereIsNo("key", key, keys_)));
      }
      CLI::Option* option = app_.get_option("--" + key);
      if (entry.second.IsSequence()) {
        for (const auto& item : entry.second) option->add_result(item.as<std::string>());
      } else {
        option->add_result(entry.second.as<std::string>());
      }
      option->run_callback();
      option->clear();
    }
  }

  ServerConfig& config_;
  CLI::App app_{"routing-replay-server: carries expert choices from rollout to trainer", "routing-replay-server"};
  std::string config_file_;
  std::vector<std::string> keys_;
};

// host:port or [v6]:port.
bool IsHostAndPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = -1;
  return colon != std::string::npos && colon > 0 && absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 0 &&
         port <= 65535 && (address[0] == '[' ? address[colon - 1] == ']' : address.find(':') == colon);
}

absl::Status CheckListenAddress(const std::string& address) {
  if (absl::StartsWith(address, "unix:") && address.size() > 5) return absl::OkStatus();
  if (IsHostAndPort(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--listen: '", address, "' is not host:port, [v6]:port or unix:PATH"));
}

absl::Status CheckOperatorAddress(const std::string& key, const std::string& address) {
  if (address.empty() || IsHostAndPort(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", key, ": '", address, "' is not host:port or [v6]:port"));
}

// The health port is always plaintext, and without channelz it tells nothing but whether the server is well.
absl::Status CheckHealthPort(const ServerConfig& config) {
  if (!config.channelz || config.insecure || IsLocalAddress(config.health_listen)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--health-listen: '", config.health_listen, "' can be reached from elsewhere, and channelz tells ",
                   "there about all connections in plaintext; leave --channelz out, or set --insecure where the ",
                   "network is trusted"));
}

absl::Status CheckEncrypted(const ServerConfig& config) {
  if (!config.tls.certificate.empty() || config.insecure) return absl::OkStatus();
  std::vector<std::pair<const char*, std::string>> plain;
  for (const std::string& address : config.listen) plain.emplace_back("listen", address);
  if (!config.operations_listen.empty()) plain.emplace_back("operations-listen", config.operations_listen);
  for (const auto& [key, address] : plain) {
    if (IsLocalAddress(address)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--", key, ": '", address, "' can be reached from elsewhere, and nothing on it would be encrypted; ",
        "set --tls-cert and --tls-key, or --insecure where the network is trusted"));
  }
  return absl::OkStatus();
}

// A read that is cut off begins anew, which would come to its end no sooner.
absl::Status CheckConnectionAge(const ServerConfig& config) {
  if (config.max_connection_age.count() == 0 || config.max_connection_age_grace >= config.max_deadline) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--max-connection-age-grace: ", TimeText(config.max_connection_age_grace), " is less than max-deadline (",
      TimeText(config.max_deadline), "), the time that a call may take; raise it, or lower max-deadline"));
}

absl::Status CheckTokenFile(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  const auto control = AccessControl::Create(path, Clock::Real(), [](const absl::Status&) {});
  if (control.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--token-file: ", control.status().message()));
}

// A server with a certificate that has expired runs, and no client talks to it: whoever asks beforehand is told so.
absl::Status CheckTls(ServerConfig& config) {
  const auto texts = ReadTlsFiles(config.tls);
  if (!texts.ok()) return texts.status();
  if (config.tls.certificate.empty() || texts->expires > Clock::Real().TimeOfDay()) return absl::OkStatus();
  const std::string expired = absl::StrCat("--tls-cert: the certificate in ", config.tls.certificate, " expired at ",
                                           absl::FormatTime(absl::FromChrono(texts->expires), absl::UTCTimeZone()));
  if (config.check_config) return absl::InvalidArgumentError(expired);
  config.warnings.push_back(absl::StrCat(expired, ": no client will talk to this server"));
  return absl::OkStatus();
}

// `others`: bits that nobody but the user and the group of the file should have.
void WarnOfMode(const char* key, const std::string& path, mode_t others, const char* what, ServerConfig& config) {
  struct stat status;
  if (path.empty() || stat(path.c_str(), &status) != 0 || (status.st_mode & others) == 0) return;
  config.warnings.push_back(absl::StrFormat("--%s: every user of this machine may %s %s (mode %04o); chmod o-rwx it",
                                            key, what, path, status.st_mode & ALLPERMS));
}

}  // namespace

absl::StatusOr<ServerConfig> ParseServerConfig(int argc, const char* const* argv) {
  ServerConfig config;
  Parser parser(config);
  try {
    parser.Parse(argc, argv);
    config.warnings = parser.UnknownVariables();
  } catch (const CLI::Success& done) {
    return absl::CancelledError(parser.Text(done));
  } catch (const CLI::Error& error) {
    return absl::InvalidArgumentError(error.what());
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
  if (absl::Status status = CheckStoreName(config.store); !status.ok()) return status;
  if (absl::Status status = CheckSpill(config.store, config.spill_directory); !status.ok()) return status;
  if (absl::Status status = CheckDurability(config.store, config.durability); !status.ok()) return status;
  for (const std::string& address : config.listen) {
    if (absl::Status status = CheckListenAddress(address); !status.ok()) return status;
  }
  for (const auto& [key, address] :
       {std::pair("operations-listen", config.operations_listen), std::pair("health-listen", config.health_listen)}) {
    if (absl::Status status = CheckOperatorAddress(key, address); !status.ok()) return status;
  }
  if (absl::Status status = CheckTls(config); !status.ok()) return status;
  if (absl::Status status = CheckEncrypted(config); !status.ok()) return status;
  if (absl::Status status = CheckConnectionAge(config); !status.ok()) return status;
  if (!config.health_listen.empty()) {
    if (absl::Status status = CheckHealthPort(config); !status.ok()) return status;
  }
  if (absl::Status status = CheckTokenFile(config.token_file); !status.ok()) return status;
  WarnOfMode("tls-key", config.tls.key, S_IROTH | S_IWOTH, "read", config);
  WarnOfMode("token-file", config.token_file, S_IWOTH, "change", config);
  return config;
}

std::string ToYaml(const ServerConfig& c) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  out << YAML::Key << "listen" << YAML::Value << c.listen;
  out << YAML::Key << "advertise" << YAML::Value << c.advertise;
  out << YAML::Key << "endpoint-file" << YAML::Value << c.endpoint_file;
  out << YAML::Key << "exit-with-pid" << YAML::Value << c.exit_with_pid;
  out << YAML::Key << "store" << YAML::Value << c.store;
  out << YAML::Key << "durability" << YAML::Value << c.durability;
  out << YAML::Key << "memory-budget" << YAML::Value << BytesText(c.memory_budget);
  out << YAML::Key << "spill-directory" << YAML::Value << c.spill_directory;
  out << YAML::Key << "spill-budget" << YAML::Value << BytesText(c.spill_budget);
  out << YAML::Key << "default-ttl" << YAML::Value << TimeText(c.default_ttl);
  out << YAML::Key << "sweep-interval" << YAML::Value << TimeText(c.sweep_interval);
  out << YAML::Key << "max-message-bytes" << YAML::Value << BytesText(c.max_message_bytes);
  out << YAML::Key << "max-payload-bytes" << YAML::Value << BytesText(c.max_payload_bytes);
  out << YAML::Key << "stream-window-bytes" << YAML::Value << BytesText(c.stream_window_bytes);
  out << YAML::Key << "read-message-bytes" << YAML::Value << BytesText(c.read_message_bytes);
  out << YAML::Key << "max-wait" << YAML::Value << TimeText(c.max_wait);
  out << YAML::Key << "stall-timeout" << YAML::Value << TimeText(c.stall_timeout);
  out << YAML::Key << "drain-timeout" << YAML::Value << TimeText(c.drain_timeout);
  out << YAML::Key << "threads" << YAML::Value << c.threads;
  out << YAML::Key << "verify" << YAML::Value << c.verify;
  out << YAML::Key << "allocator" << YAML::Value << c.allocator;
  out << YAML::Key << "log-level" << YAML::Value << c.log_level;
  out << YAML::Key << "tls-cert" << YAML::Value << c.tls.certificate;
  out << YAML::Key << "tls-key" << YAML::Value << c.tls.key;
  out << YAML::Key << "tls-client-ca" << YAML::Value << c.tls.client_ca;
  out << YAML::Key << "tls-reload-interval" << YAML::Value << TimeText(c.tls_reload_interval);
  out << YAML::Key << "insecure" << YAML::Value << c.insecure;
  out << YAML::Key << "token-file" << YAML::Value << c.token_file;
  out << YAML::Key << "operations-listen" << YAML::Value << c.operations_listen;
  out << YAML::Key << "health-listen" << YAML::Value << c.health_listen;
  out << YAML::Key << "reflection" << YAML::Value << c.reflection;
  out << YAML::Key << "channelz" << YAML::Value << c.channelz;
  out << YAML::Key << "run-metrics" << YAML::Value << c.run_metrics;
  out << YAML::Key << "drain-delay" << YAML::Value << TimeText(c.drain_delay);
  out << YAML::Key << "run-budget" << YAML::Value << BytesText(c.run_budget);
  out << YAML::Key << "run-streams" << YAML::Value << c.run_streams;
  out << YAML::Key << "max-runs" << YAML::Value << c.max_runs;
  out << YAML::Key << "max-streams" << YAML::Value << c.max_streams;
  out << YAML::Key << "max-connections" << YAML::Value << c.max_connections;
  out << YAML::Key << "max-connections-per-address" << YAML::Value << c.max_connections_per_address;
  out << YAML::Key << "max-deadline" << YAML::Value << TimeText(c.max_deadline);
  out << YAML::Key << "max-connection-age" << YAML::Value << TimeText(c.max_connection_age);
  out << YAML::Key << "max-connection-age-grace" << YAML::Value << TimeText(c.max_connection_age_grace);
  out << YAML::Key << "log-format" << YAML::Value << c.log_format;
  out << YAML::EndMap;
  return absl::StrCat(out.c_str(), "\n");
}

}  // namespace routing_replay::server
