#include "server/config/config.h"

#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <sstream>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "proto/wire/security.h"
#include "proto/wire/status_macros.h"
#include "server/config/open_store.h"
#include "server/security/access_control.h"

namespace routing_replay::server {
namespace {

using std::chrono::milliseconds;

using Units = std::map<std::string, int64_t>;
const Units kBytes = {{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", int64_t{1} << 40}};
const Units kTimes = {{"ms", 1}, {"s", 1000}, {"m", 60 * 1000}, {"h", 3600 * 1000}};

// Writes the value as a whole number of the largest unit that divides it: 1536 KiB, but 2 MiB.
std::string QuantityText(int64_t value, const Units& units) {
  std::pair<std::string, int64_t> best = {"", 1};
  for (const auto& unit : units) {
    const bool fits = value == 0 ? unit.first == "s" : value % unit.second == 0 && unit.second >= best.second;
    if (fits) best = unit;
  }
  return absl::StrCat(value / best.second, best.first);
}

// The allowed range of a quantity, in bytes or milliseconds, both ends included.
CLI::Validator Within(int64_t least, int64_t most) { return CLI::Range(least, most).description(""); }
CLI::Validator OrNone(const CLI::Validator& bounds) { return (bounds | CLI::IsMember({"0"})).description(""); }

constexpr int64_t kMaxBytes = int64_t{1} << 60;
const CLI::Validator kMemoryBytes = Within(1 << 20, kMaxBytes);
const CLI::Validator kRunBytes = OrNone(Within(4 << 10, kMaxBytes));
// 30 days: far below the values at which adding it to the present time would overflow.
constexpr int64_t kMaxTime = int64_t{30} * 24 * 3600 * 1000;
const CLI::Validator kTimeOrNone = Within(0, kMaxTime);
const CLI::Validator kSecondsOrNone = OrNone(Within(1000, kMaxTime));

// True for "host:port" and "[v6]:port".
bool IsHostAndPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = -1;
  return colon != std::string::npos && colon > 0 && absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 0 &&
         port <= 65535 && (address[0] == '[' ? address[colon - 1] == ']' : address.find(':') == colon);
}

// Accepts host:port, [v6]:port and what `other` accepts. `forms`: the forms after host:port, as the error names them.
CLI::Validator Address(const char* forms, const std::function<bool(const std::string&)>& other) {
  const auto check = [forms, other](const std::string& address) {
    const bool good = IsHostAndPort(address) || other(address);
    return good ? "" : absl::StrCat("'", address, "' is not host:port", forms);
  };
  return CLI::Validator(check, "");
}
const CLI::Validator kListener = Address(", [v6]:port or unix:PATH", [](const std::string& address) {
  return absl::StartsWith(address, "unix:") && address.size() > 5;
});
const CLI::Validator kPortOrOff =
    Address(", [v6]:port or off", [](const std::string& address) { return address.empty() || address == kOff; });
const CLI::Validator kPortOrNone = Address(" or [v6]:port", [](const std::string& address) { return address.empty(); });

// Declares every key once. Its flag, YAML key and environment variable are made from that declaration.
class Parser {
 public:
  explicit Parser(ServerConfig& config) : config_(config) {
    app_.set_version_flag("--version", ROUTING_REPLAY_VERSION);
    app_.add_option("--config", config_file_, "YAML file with any of the keys below")->envname("RR_CONFIG");
    Key("listen", config_.listen, "addresses to listen on: host:port, [v6]:port or unix:PATH")->check(kListener);
    Key("direct-listen", config_.direct_listen,
        "address of the direct path: appends and reads without gRPC, with TLS if the gRPC listeners have it; without "
        "TLS, clients on this machine also use a Unix socket. off: no direct path; empty: the first TCP address "
        "of --listen, with its port number plus 3")
        ->check(kPortOrOff);
    Key("advertise", config_.advertise,
        "address that the server reports to clients; or shard:host:port,host:port,…, a list of servers. Clients then "
        "spread each run over the whole list, and need to know only one of its servers");
    Key("endpoint-file", config_.endpoint_file,
        "file with the server's address: --advertise (if one address) or the first listener; removed at SIGTERM");
    Key("exit-with-pid", config_.exit_with_pid, "exit, as on SIGTERM, when process PID exits (0: off)")
        ->check(CLI::NonNegativeNumber);
    Key("store", config_.store,
        "where rows are stored: memory; rocksdb:DIRECTORY, which survives a restart; or redis://HOST:PORT,… (rediss:// "
        "with TLS), a Redis or Valkey server or cluster that any number of servers share");
    Key("durability", config_.durability,
        "how far an append must be stored before it is acknowledged, in runs that do not set it: memory, written (to "
        "the operating system) or synced (to the disk); default: memory with --store memory, otherwise written");
    QuantityKey("memory-budget", config_.memory_budget, kMemoryBytes,
                "memory for routing data, stored and in transfer; with --store rocksdb a quarter, at most 4 GiB, is "
                "RocksDB's cache");
    Key("spill-directory", config_.spill_directory,
        "with --store memory: directory to which the least recently used sealed samples move once three quarters of "
        "the memory budget are in use; older spill files in it are removed at every start");
    QuantityKey("spill-budget", config_.spill_budget, kMemoryBytes,
                "limit of the size of all files in the spill directory");
    QuantityKey("drain-delay", config_.drain_delay, kTimeOrNone,
                "time after SIGTERM in which the server reports that it is not ready but still accepts calls");
    QuantityKey("drain-timeout", config_.drain_timeout, kTimeOrNone,
                "time after SIGTERM (and drain-delay) in which calls in flight may end; then they are cancelled");
    Key("threads", config_.threads,
        "event-loop threads that serve calls; waiting for a disk or a network happens on other threads")
        ->check(CLI::Range(1, 256));
    Key("log-level", config_.log_level, "lowest level that is logged: debug, info, warning or error")
        ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
    Key("tls-cert", config_.tls.certificate, "PEM file with the certificate chain of all listeners; empty: plaintext");
    Key("tls-key", config_.tls.key, "PEM file with the private key of --tls-cert, without a passphrase");
    Key("tls-client-ca", config_.tls.client_ca,
        "PEM file with an authority that must have signed the clients' certificates; empty: clients need none");
    Add("insecure", [this](YAML::Emitter& out) { out << config_.insecure; });
    app_.add_flag("--insecure", config_.insecure,  // Without a value it means true.
                  "allow listening without TLS on addresses that other machines can reach")
        ->envname(Variable("insecure"));
    Key("token-file", config_.token_file,
        "file with the hashes of the tokens that clients must send, and what each allows; reloaded when it changes "
        "(rrctl token makes entries); empty: everybody may do everything");
    Key("operations-listen", config_.operations_listen,
        "address of the HTTP port with /metrics, /healthz, /readyz and /statusz; empty: no such port")
        ->check(kPortOrNone);
    Key("health-listen", config_.health_listen,
        "address of gRPC's health service (names live and ready), always plaintext; empty: no such port")
        ->check(kPortOrNone);
    QuantityKey("run-budget", config_.run_budget, kRunBytes, "limit of the bytes of one run; 0: no limit");
    Key("max-connections-per-address", config_.max_connections_per_address,
        "limit of open connections per client address (IPv6: per /64 network); raise it if clients share a proxy")
        ->check(CLI::PositiveNumber);
    QuantityKey("max-connection-age", config_.max_connection_age, kSecondsOrNone,
                "age after which a connection is asked to close, so that clients that connect by name (dns:///) "
                "resolve it again "
                "and find added servers; 0: never");
    app_.add_flag("--check-config", config_.check_config, "check the configuration and exit");
    app_.add_flag("--print-config", config_.print_config, "print the configuration as YAML and exit");
  }

  // Reads the configuration file first: its values become the defaults, which flags and variables override.
  void Parse(int argc, const char* const* argv) {
    const std::string file = ConfigFile(argc, argv);
    if (!file.empty()) ApplyFile(file);
    app_.parse(argc, argv);
  }

  // Warnings, not errors: other programs may have RR_ variables (Kubernetes makes RR_PORT for a service named rr).
  std::vector<std::string> UnknownVariables() const {
    std::vector<std::string> known = {"RR_CONFIG"};
    for (const std::string& key : keys_) known.push_back(Variable(key));
    std::vector<std::string> warnings;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const absl::string_view text = *entry;
      const absl::string_view name = text.substr(0, text.find('='));
      if (!absl::StartsWith(name, "RR_") || std::find(known.begin(), known.end(), name) != known.end()) continue;
      warnings.push_back(absl::StrCat("ignored variable: there is no setting '", name, "'"));
    }
    std::sort(warnings.begin(), warnings.end());
    return warnings;
  }

  std::string ToYaml() const {
    YAML::Emitter out;
    out << YAML::BeginMap;
    for (size_t i = 0; i < keys_.size(); ++i) {
      out << YAML::Key << keys_[i] << YAML::Value;
      prints_[i](out);
    }
    out << YAML::EndMap;
    return absl::StrCat(out.c_str(), "\n");
  }

  // The text that CLI11 would print for --help or --version.
  std::string Text(const CLI::Success& done) const {
    std::ostringstream out;
    app_.exit(done, out, out);
    return out.str();
  }

 private:
  template <typename T>
  CLI::Option* Key(const std::string& key, T& value, const std::string& help) {
    Add(key, [&value](YAML::Emitter& out) { out << value; });
    return app_.add_option("--" + key, value, help)->capture_default_str()->envname(Variable(key));
  }
  // Adds a key whose value is a quantity with a unit, optional for bytes. `T`: int64_t for bytes, or milliseconds.
  template <typename T>
  void QuantityKey(const std::string& key, T& value, const CLI::Validator& bounds, const std::string& help) {
    using Number = CLI::AsNumberWithUnit;
    constexpr bool kIsTime = std::is_same_v<T, milliseconds>;
    const Units& units = kIsTime ? kTimes : kBytes;
    const auto text = [&value, &units] { return QuantityText(value / T(1), units); };
    Add(key, [text](YAML::Emitter& out) { out << text(); });
    app_.add_option_function<int64_t>(
            "--" + key, [&value](int64_t number) { value = T(number); }, help)
        ->transform(Number(units, kIsTime ? Number::UNIT_REQUIRED : Number::UNIT_OPTIONAL).description(""))
        ->check(bounds)
        ->type_name(kIsTime ? "TIME" : "SIZE")
        ->default_str(text())
        ->envname(Variable(key));
  }
  void Add(const std::string& key, std::function<void(YAML::Emitter&)> print) {
    keys_.push_back(key);
    prints_.push_back(std::move(print));
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

  // Catches std::exception because YAML::LoadFile does not always throw a YAML::Exception: if `path` is a directory,
  // the file stream throws.
  static YAML::Node LoadFile(const std::string& path) {
    try {
      return YAML::LoadFile(path);
    } catch (const std::exception& error) {
      throw CLI::ValidationError(absl::StrCat("--config: ", path, ": ", error.what()));
    }
  }

  // Passes the file's values to the flags' options, so that each key has one parser and one set of checks.
  void ApplyFile(const std::string& path) {
    const YAML::Node file = LoadFile(path);
    if (file.IsNull()) return;
    if (!file.IsMap()) throw CLI::ValidationError(path + ": must be a mapping of keys");
    for (const auto& entry : file) {
      const auto key = entry.first.as<std::string>();
      if (std::find(keys_.begin(), keys_.end(), key) == keys_.end()) {
        throw CLI::ValidationError(absl::StrCat(path, ": there is no key '", key, "'"));
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
  std::vector<std::function<void(YAML::Emitter&)>> prints_;  // Prints the value of each key.
};

absl::Status CheckEncrypted(const ServerConfig& config) {
  if (!config.tls.certificate.empty() || config.insecure) return absl::OkStatus();
  std::vector<std::pair<const char*, std::string>> plain;
  for (const std::string& address : config.listen) plain.emplace_back("listen", address);
  if (const auto direct = DirectListenerOf(config); direct && !direct->address.empty()) {
    plain.emplace_back("direct-listen", direct->address);
  }
  if (!config.operations_listen.empty()) plain.emplace_back("operations-listen", config.operations_listen);
  for (const auto& [key, address] : plain) {
    if (IsLocalAddress(address)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--", key, ": '", address, "' can be reached from other machines, and its connections would not be encrypted; ",
        "set --tls-cert and --tls-key, or --insecure if the network is trusted"));
  }
  return absl::OkStatus();
}

absl::Status CheckTokenFile(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  const auto control = AccessControl::Create(path, Clock::Real(), [](const absl::Status&) {});
  if (control.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--token-file: ", control.status().message()));
}

// Checks the TLS files. An expired certificate is an error only with --check-config. Otherwise it is a warning, and the
// server starts: no client accepts the certificate, but a new one may be put in place at any time.
absl::Status CheckTls(ServerConfig& config) {
  RR_ASSIGN_OR_RETURN(const auto texts, ReadTlsFiles(config.tls));
  if (config.tls.certificate.empty() || texts.expires > Clock::Real().TimeOfDay()) return absl::OkStatus();
  const std::string expired = absl::StrCat("--tls-cert: the certificate in ", config.tls.certificate, " expired at ",
                                           absl::FormatTime(absl::FromChrono(texts.expires), absl::UTCTimeZone()));
  if (config.check_config) return absl::InvalidArgumentError(expired);
  config.warnings.push_back(absl::StrCat(expired, ": clients will reject this server; renew the certificate"));
  return absl::OkStatus();
}

}  // namespace

std::optional<DirectListener> DirectListenerOf(const ServerConfig& config) {
  if (config.direct_listen == kOff) return std::nullopt;
  if (!config.direct_listen.empty()) return DirectListener{.address = config.direct_listen};
  for (const std::string& address : config.listen) {
    if (absl::StartsWith(address, "unix:")) continue;
    const size_t colon = address.rfind(':');
    int port = 0;
    const bool fixed = absl::SimpleAtoi(address.substr(colon + 1), &port) && port != 0;
    const int beside = fixed && port + kDirectPortsAbove <= 65535 ? port + kDirectPortsAbove : 0;
    return DirectListener{.address = absl::StrCat(address.substr(0, colon), ":", beside), .or_any_port = true};
  }
  if (!config.tls.certificate.empty()) return std::nullopt;
  return DirectListener{};
}

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
  absl::Status store = CheckStore(config.store, config.durability, config.spill_directory);
  if (!store.ok()) return store;
  RR_RETURN_IF_ERROR(CheckTls(config));
  RR_RETURN_IF_ERROR(CheckEncrypted(config));
  RR_RETURN_IF_ERROR(CheckTokenFile(config.token_file));
  return config;
}

std::string ToYaml(ServerConfig config) { return Parser(config).ToYaml(); }

}  // namespace routing_replay::server
