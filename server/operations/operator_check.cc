#include "server/operations/operator_check.h"

#include <arpa/inet.h>

#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "proto/wire/local_address.h"

namespace routing_replay::server {
namespace {

// "Name.:7401" and "[::1]:7401" as "name" and "::1".
std::string HostOf(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon != absl::string_view::npos && address.find(']', colon) == absl::string_view::npos) {
    address = address.substr(0, colon);
  }
  if (absl::ConsumePrefix(&address, "[")) absl::ConsumeSuffix(&address, "]");
  absl::ConsumeSuffix(&address, ".");
  return absl::AsciiStrToLower(address);
}

bool IsIpAddress(const std::string& host) {
  in6_addr address;  // Of either kind.
  return inet_pton(AF_INET, host.c_str(), &address) == 1 || inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

// Where no token is asked for.
class OpenPort {
 public:
  explicit OpenPort(const ServerConfig& config) : names_({"", "localhost"}) {
    for (const std::string& address : config.listen) {
      if (!absl::StartsWith(address, "unix:")) names_.insert(HostOf(address));
    }
    for (const std::string& address : {config.advertise, config.operations_listen}) names_.insert(HostOf(address));
  }

  absl::StatusOr<std::string> operator()(const HttpRequest& request, ScopeSet any_of) const {
    const std::string host = HostOf(request.host);
    if (!names_.contains(host) && !IsIpAddress(host)) {
      return absl::FailedPreconditionError(
          "this server does not know itself by the name in your URL: use its address, "
          "localhost or the name in --advertise, or set --token-file");
    }
    const bool changes = !any_of.overlaps(Scope::kRead);
    if (changes && !request.from_here) {
      return absl::FailedPreconditionError("without --token-file changes are taken from this machine alone");
    }
    return "";
  }

 private:
  std::set<std::string> names_;
};

}  // namespace

OperatorCheck MakeOperatorCheck(const ServerConfig& config, const AccessControl& access) {
  if (!config.token_file.empty()) {
    return
        [&access](const HttpRequest&, absl::string_view authorization, ScopeSet any_of) -> absl::StatusOr<std::string> {
          absl::Status status = access.Check(authorization, any_of, /*run=*/"");
          if (!status.ok()) return status;
          return access.NameOf(authorization);
        };
  }
  const bool by_certificate = !config.tls.client_ca.empty();
  if (by_certificate && !config.operations_listen.empty() && !IsLocalAddress(config.operations_listen)) {
    return [](const HttpRequest&, absl::string_view, ScopeSet) {
      return absl::UnauthenticatedError("no token is known; set --token-file");
    };
  }
  return [open = OpenPort(config)](const HttpRequest& request, absl::string_view, ScopeSet any_of) {
    return open(request, any_of);
  };
}

}  // namespace routing_replay::server
