#include "client/rrctl/doctor/servers.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/channel/endpoint.h"
#include "client/shard/members.h"

namespace routing_replay::client {
namespace {

// The parts of a target as GrpcTarget makes it.
ServerAddress AddressOf(const ServerTarget& target) {
  absl::string_view rest = target.target;
  ServerAddress address;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    address.unix_path = std::string(rest);
    address.endpoint = target.target;
    return address;
  }
  absl::ConsumePrefix(&rest, "dns:///");
  const std::string plain = absl::StrReplaceAll(rest, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
  const size_t colon = plain.rfind(':');
  address.host = absl::StrReplaceAll(plain.substr(0, colon), {{"[", ""}, {"]", ""}});
  address.port = plain.substr(colon + 1);
  address.endpoint = absl::StrCat(target.round_robin ? "dns:///" : "", plain);
  return address;
}

absl::Status Add(absl::string_view endpoint, std::chrono::milliseconds timeout, std::vector<ServerAddress>& servers) {
  const auto targets = ResolveEndpoint(endpoint, timeout);
  if (!targets.ok()) return targets.status();
  for (const ServerTarget& target : *targets) servers.push_back(AddressOf(target));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<ServerAddress>> ServersOf(absl::string_view endpoint, std::chrono::milliseconds timeout) {
  const auto given = EndpointOrEnvironment(endpoint);
  if (!given.ok()) return given.status();
  std::vector<std::string> endpoints = {*given};
  if (ShardMembers::IsShardEndpoint(*given)) {
    const auto members = ShardMembers::Parse(*given);
    if (!members.ok()) return members.status();
    endpoints = members->endpoints();
  }
  std::vector<ServerAddress> servers;
  for (const std::string& one : endpoints) {
    if (absl::Status status = Add(one, timeout, servers); !status.ok()) return status;
  }
  return servers;
}

}  // namespace routing_replay::client
