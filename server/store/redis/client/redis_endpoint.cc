#include "server/store/redis/client/redis_endpoint.h"

#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/wire/status_macros.h"
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

// Parses host, host:port, [v6] or [v6]:port.
absl::StatusOr<RedisAddress> AddressOf(absl::string_view text) {
  RedisAddress address{.port = kDefaultPort};
  const bool brackets = absl::ConsumePrefix(&text, "[");
  const size_t end = text.find(brackets ? ']' : ':');
  if (brackets && end == absl::string_view::npos) return InvalidEndpoint("host", "must have a closing ] after [");
  address.host = std::string(text.substr(0, end));
  if (address.host.empty()) return InvalidEndpoint("host", "is empty");
  text.remove_prefix(brackets ? end + 1 : address.host.size());
  if (text.empty()) return address;
  if (!absl::ConsumePrefix(&text, ":")) return InvalidEndpoint("host", "after ] there may only be a port (':PORT')");
  if (absl::StrContains(text, ":")) return InvalidEndpoint("host", "an IPv6 address must be in brackets");
  const auto port = ParseDecimal(text);
  if (!port || *port < 1 || *port > 65535) return InvalidEndpoint("port", "must be a number from 1 to 65535");
  address.port = static_cast<uint16_t>(*port);
  return address;
}

absl::Status SetOption(absl::string_view text, RedisEndpoint& endpoint) {
  const std::pair<absl::string_view, absl::string_view> option = absl::StrSplit(text, absl::MaxSplits('=', 1));
  const auto [name, value] = option;
  const std::pair<absl::string_view, std::string*> options[] = {{"prefix", &endpoint.prefix},
                                                                {"password_file", &endpoint.password_file},
                                                                {"ca_file", &endpoint.ca_file},
                                                                {"cert_file", &endpoint.cert_file},
                                                                {"key_file", &endpoint.key_file}};
  for (const auto& [known, into] : options) {
    if (name != known) continue;
    if (value.empty()) return InvalidEndpoint(name, "is empty");
    if (!into->empty()) return InvalidEndpoint(name, "is given twice");
    *into = std::string(value);
    return absl::OkStatus();
  }
  if (name == "password") return InvalidEndpoint(name, "must not be in the URL; use password_file");
  // Does not repeat the unknown option: it may be a mistyped secret.
  return InvalidEndpoint("option", "must be prefix, password_file, ca_file, cert_file or key_file");
}

absl::Status CheckOptions(const RedisEndpoint& endpoint) {
  if (!endpoint.prefix.empty() && !CheckId(endpoint.prefix, "prefix").ok()) {
    return InvalidEndpoint("prefix", "must be 1 to 128 bytes of [A-Za-z0-9._:/-]");
  }
  for (const auto& [name, file] :
       {std::pair("ca_file", &endpoint.ca_file), std::pair("cert_file", &endpoint.cert_file)}) {
    if (!endpoint.tls && !file->empty()) return InvalidEndpoint(name, "requires rediss:// (TLS)");
  }
  if (endpoint.cert_file.empty() != endpoint.key_file.empty()) {
    return InvalidEndpoint(endpoint.cert_file.empty() ? "cert_file" : "key_file",
                           "cert_file and key_file must be given together");
  }
  if (!endpoint.user.empty() && endpoint.password_file.empty()) {
    return InvalidEndpoint("password_file", "must be given with a user");
  }
  return absl::OkStatus();
}

}  // namespace

std::string RedisAddress::ToString() const {
  return absl::StrContains(host, ":") ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<RedisEndpoint> ParseRedisEndpoint(absl::string_view url) {
  RedisEndpoint endpoint;
  endpoint.tls = absl::ConsumePrefix(&url, "rediss://");
  if (!endpoint.tls && !absl::ConsumePrefix(&url, "redis://")) {
    return InvalidEndpoint("scheme", "must be redis:// or rediss://");
  }
  const std::pair<absl::string_view, absl::string_view> query = absl::StrSplit(url, absl::MaxSplits('?', 1));
  absl::string_view place = query.first;
  // Everything up to the last @ may be secret.
  if (const size_t at = place.rfind('@'); at != absl::string_view::npos) {
    endpoint.user = std::string(place.substr(0, at));
    if (endpoint.user.empty()) return InvalidEndpoint("user", "is empty");
    if (absl::StrContains(endpoint.user, ":")) {
      return InvalidEndpoint("password", "must not be in the URL; use password_file");
    }
    place.remove_prefix(at + 1);
  }
  const std::pair<absl::string_view, absl::string_view> path = absl::StrSplit(place, absl::MaxSplits('/', 1));
  if (!path.second.empty() && path.second != "0") return InvalidEndpoint("database", "must be 0");
  for (const absl::string_view part : absl::StrSplit(path.first, ',')) {
    RR_ASSIGN_OR_RETURN(auto address, AddressOf(part));
    endpoint.seeds.push_back(std::move(address));
  }
  for (const absl::string_view option : absl::StrSplit(query.second, '&', absl::SkipEmpty())) {
    RR_RETURN_IF_ERROR(SetOption(option, endpoint));
  }
  RR_RETURN_IF_ERROR(CheckOptions(endpoint));
  return endpoint;
}

absl::StatusOr<std::string> ReadRedisPassword(const RedisEndpoint& endpoint) {
  if (endpoint.password_file.empty()) return std::string();
  std::ifstream file(endpoint.password_file, std::ios::binary);
  std::string password(kMaxPasswordBytes + 1, '\0');
  file.read(password.data(), static_cast<std::streamsize>(password.size()));
  password.resize(static_cast<size_t>(file.gcount()));
  absl::string_view line = password;
  if (absl::ConsumeSuffix(&line, "\n")) absl::ConsumeSuffix(&line, "\r");
  if (!line.empty() && password.size() <= kMaxPasswordBytes) return std::string(line);
  return MakeError(absl::StatusCode::kPermissionDenied,
                   absl::StrCat("redis store: password_file: ", endpoint.password_file,
                                line.empty() ? " cannot be read or is empty" : " is too long"),
                   {.reason = Reason::kField, .field = "password_file"});
}

}  // namespace routing_replay::server
