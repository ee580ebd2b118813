#include "server/store/redis/client/redis_endpoint.h"

#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/sample.h"
#include "server/store/redis/client/redis_protocol.h"

namespace routing_replay::server {
namespace {

constexpr uint16_t kDefaultPort = 6379;
constexpr size_t kMaxPasswordBytes = 4096;

absl::Status InvalidEndpoint(absl::string_view field, absl::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("redis store: ", field, ": ", what),
                   {.reason = Reason::kField, .field = std::string(field)});
}

absl::StatusOr<std::string> PercentDecoded(absl::string_view field, absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    if (i + 2 >= text.size() || !absl::ascii_isxdigit(text[i + 1]) || !absl::ascii_isxdigit(text[i + 2])) {
      return InvalidEndpoint(field, "% is not followed by two hexadecimal digits");
    }
    decoded += absl::HexStringToBytes(text.substr(i + 1, 2));
    i += 2;
  }
  if (decoded.find('\0') != std::string::npos) return InvalidEndpoint(field, "holds a NUL byte");
  return decoded;
}

absl::StatusOr<uint16_t> PortOf(absl::string_view text) {
  const auto port = ParseDecimal(text);
  if (!port || *port < 1 || *port > 65535) return InvalidEndpoint("port", "is no number from 1 to 65535");
  return static_cast<uint16_t>(*port);
}

absl::Status CheckHost(absl::string_view host) {
  if (host.empty()) return InvalidEndpoint("host", "is empty");
  for (const char c : host) {
    if (!absl::ascii_isalnum(c) && c != '.' && c != '-' && c != '_' && c != ':' && c != '%') {
      return InvalidEndpoint("host", "holds a character that no host has");
    }
  }
  return absl::OkStatus();
}

// host, host:port, [v6] or [v6]:port.
absl::StatusOr<RedisAddress> AddressOf(absl::string_view text, bool needs_port) {
  RedisAddress address{.port = kDefaultPort};
  absl::string_view port;
  bool has_port = false;
  if (absl::ConsumePrefix(&text, "[")) {
    const size_t end = text.find(']');
    if (end == absl::string_view::npos) return InvalidEndpoint("host", "[ without ]");
    address.host = std::string(text.substr(0, end));
    port = text.substr(end + 1);
    has_port = absl::ConsumePrefix(&port, ":");
    if (!has_port && !port.empty()) return InvalidEndpoint("host", "something other than a port follows ]");
  } else {
    const size_t colon = text.find(':');
    has_port = colon != absl::string_view::npos;
    address.host = std::string(text.substr(0, colon));
    if (has_port) port = text.substr(colon + 1);
    if (absl::StrContains(port, ":")) return InvalidEndpoint("host", "an IPv6 address must stand in brackets");
  }
  if (auto status = CheckHost(address.host); !status.ok()) return status;
  if (!has_port) {
    if (needs_port) return InvalidEndpoint("port", "is missing");
    return address;
  }
  const auto number = PortOf(port);
  if (!number.ok()) return number.status();
  address.port = *number;
  return address;
}

absl::Status SetOption(absl::string_view text, RedisEndpoint& endpoint) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
  const absl::string_view name = parts.first;
  struct Option {
    absl::string_view name;
    std::string* value;
    bool tls;  // Of rediss:// alone.
  };
  const Option options[] = {{"prefix", &endpoint.prefix, false},
                            {"password_file", &endpoint.password_file, false},
                            {"ca_file", &endpoint.ca_file, true},
                            {"cert_file", &endpoint.cert_file, true},
                            {"key_file", &endpoint.key_file, true}};
  for (const auto& [known, value, tls] : options) {
    if (name != known) continue;
    auto decoded = PercentDecoded(name, parts.second);
    if (!decoded.ok()) return decoded.status();
    if (decoded->empty()) return InvalidEndpoint(name, "is empty");
    if (!value->empty()) return InvalidEndpoint(name, "is given twice");
    if (!endpoint.tls && tls) return InvalidEndpoint(name, "is for rediss:// only");
    *value = *std::move(decoded);
    return absl::OkStatus();
  }
  if (name == "password") return InvalidEndpoint(name, "does not belong into a URL; name a password_file");
  // What an unknown option is called may be a mistyped secret.
  return InvalidEndpoint("option", "none of prefix, password_file, ca_file, cert_file, key_file");
}

absl::Status SetUser(absl::string_view text, RedisEndpoint& endpoint) {
  if (absl::StrContains(text, ":"))
    return InvalidEndpoint("password", "does not belong into a URL; name a password_file");
  auto user = PercentDecoded("user", text);
  if (!user.ok()) return user.status();
  if (user->empty()) return InvalidEndpoint("user", "is empty");
  endpoint.user = *std::move(user);
  return absl::OkStatus();
}

absl::Status SetSeeds(absl::string_view text, RedisEndpoint& endpoint) {
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    auto address = AddressOf(part, /*needs_port=*/false);
    if (!address.ok()) return address.status();
    endpoint.seeds.push_back(*std::move(address));
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const RedisEndpoint& endpoint) {
  if (!endpoint.prefix.empty() && !CheckId(endpoint.prefix, "prefix").ok()) {
    return InvalidEndpoint("prefix", "is not 1 to 128 bytes of [A-Za-z0-9._:/-]");
  }
  if (endpoint.cert_file.empty() != endpoint.key_file.empty()) {
    return InvalidEndpoint(endpoint.cert_file.empty() ? "cert_file" : "key_file",
                           "a certificate and its key go together");
  }
  if (!endpoint.user.empty() && endpoint.password_file.empty()) {
    return InvalidEndpoint("password_file", "a user needs one");
  }
  return absl::OkStatus();
}

}  // namespace

std::string RedisAddress::ToString() const {
  return absl::StrContains(host, ":") ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<RedisAddress> ParseRedisAddress(absl::string_view text) { return AddressOf(text, /*needs_port=*/true); }

absl::StatusOr<RedisEndpoint> ParseRedisEndpoint(absl::string_view url) {
  RedisEndpoint endpoint;
  endpoint.tls = absl::ConsumePrefix(&url, "rediss://");
  if (!endpoint.tls && !absl::ConsumePrefix(&url, "redis://"))
    return InvalidEndpoint("scheme", "is not redis:// or rediss://");
  const std::pair<absl::string_view, absl::string_view> query = absl::StrSplit(url, absl::MaxSplits('?', 1));
  absl::string_view place = query.first;
  // The last @ ends what may be secret.
  if (const size_t at = place.rfind('@'); at != absl::string_view::npos) {
    if (auto status = SetUser(place.substr(0, at), endpoint); !status.ok()) return status;
    place.remove_prefix(at + 1);
  }
  const std::pair<absl::string_view, absl::string_view> path = absl::StrSplit(place, absl::MaxSplits('/', 1));
  if (!path.second.empty() && path.second != "0") return InvalidEndpoint("database", "a cluster has database 0 only");
  if (auto status = SetSeeds(path.first, endpoint); !status.ok()) return status;
  for (const absl::string_view option : absl::StrSplit(query.second, '&', absl::SkipEmpty())) {
    if (auto status = SetOption(option, endpoint); !status.ok()) return status;
  }
  if (auto status = CheckOptions(endpoint); !status.ok()) return status;
  return endpoint;
}

absl::StatusOr<std::string> ReadRedisPassword(const RedisEndpoint& endpoint) {
  if (endpoint.password_file.empty()) return std::string();
  const auto reject = [&](absl::string_view what) {
    return MakeError(absl::StatusCode::kPermissionDenied,
                     absl::StrCat("redis store: password_file: ", endpoint.password_file, " ", what),
                     {.reason = Reason::kField, .field = "password_file"});
  };
  std::ifstream file(endpoint.password_file, std::ios::binary);
  if (!file) return reject("cannot be read");
  std::string password(kMaxPasswordBytes + 1, '\0');
  file.read(password.data(), static_cast<std::streamsize>(password.size()));
  if (file.bad()) return reject("cannot be read");
  password.resize(static_cast<size_t>(file.gcount()));
  if (password.size() > kMaxPasswordBytes) return reject("is too long");
  absl::string_view line = password;
  if (absl::ConsumeSuffix(&line, "\n")) absl::ConsumeSuffix(&line, "\r");
  if (line.empty()) return reject("is empty");
  return std::string(line);
}

}  // namespace routing_replay::server
