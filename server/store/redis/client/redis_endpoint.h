// Where a Redis or Valkey deployment is and how to log in.
//
//   redis://[user@]host:port[,host:port…][/0][?option=value&…]     plain TCP
//   rediss://…                                                     TLS
//
// Options: prefix (of all keys of this deployment; same characters as ids); password_file; with rediss also ca_file
// (default: the system's authorities), cert_file and key_file (a client certificate). A port defaults to 6379; IPv6
// addresses are in brackets. The hosts are those of one cluster, any of which may be down, or a single server. A
// password in the URL is rejected: every user of the machine can see command lines.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_ENDPOINT_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_ENDPOINT_H_

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace routing_replay::server {

struct RedisAddress {
  std::string host;  // A name, an IPv4 or an IPv6 address without brackets.
  uint16_t port = 0;

  std::string ToString() const;  // host:port or [v6]:port.
  friend auto operator<=>(const RedisAddress&, const RedisAddress&) = default;
};

struct RedisEndpoint {
  std::vector<RedisAddress> seeds;  // Not empty.
  bool tls = false;
  std::string prefix;         // Empty: the store's own.
  std::string user;           // ACL user; empty: "default".
  std::string password_file;  // Empty: no password.
  std::string ca_file;
  std::string cert_file;
  std::string key_file;
};

// INVALID_ARGUMENT (kField: scheme, host, port, user, password, database, or the option's name). Messages never repeat
// the text before an @. Reads no file.
absl::StatusOr<RedisEndpoint> ParseRedisEndpoint(absl::string_view url);

// The password, read again at each call so that a rotated one is found; one line break at its end is dropped. Empty if
// the endpoint has no password_file. PERMISSION_DENIED (kField: password_file) if the file cannot be read, is empty or
// above 4 KiB.
absl::StatusOr<std::string> ReadRedisPassword(const RedisEndpoint& endpoint);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_ENDPOINT_H_
