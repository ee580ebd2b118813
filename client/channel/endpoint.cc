#include "client/channel/endpoint.h"

#include <arpa/inet.h>
#include <sys/un.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/call/cancellation.h"
#include "proto/wire/clock.h"
#include "proto/wire/security.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

constexpr std::chrono::milliseconds kFilePoll(20);
constexpr absl::string_view kDnsPrefix = "dns:///";

absl::Status InvalidEndpoint(absl::string_view endpoint, absl::string_view why) {
  return MakeError(
      absl::StatusCode::kInvalidArgument,
      absl::StrCat("endpoint: \"", endpoint, "\" ", why,
                   "; must be host:port, [v6-address]:port, a list of these with commas, dns:///host:port, "
                   "unix:PATH or file:PATH"),
      {.reason = Reason::kField, .field = "endpoint"});
}

bool IsPort(absl::string_view text) {
  int port = 0;
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  return digits && absl::SimpleAtoi(text, &port) && port >= 1 && port <= 65535;
}

bool IsHostByte(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_';
}

bool IsV6(absl::string_view address) {
  in6_addr parsed;
  return inet_pton(AF_INET6, std::string(address).c_str(), &parsed) == 1;
}

absl::StatusOr<std::string> UnixTarget(absl::string_view endpoint, absl::string_view path) {
  if (path.empty()) return InvalidEndpoint(endpoint, "has no path");
  if (path.size() >= sizeof(sockaddr_un{}.sun_path)) {
    return InvalidEndpoint(endpoint, absl::StrCat("has a path of ", path.size(), " bytes; a socket's has fewer than ",
                                                  sizeof(sockaddr_un{}.sun_path)));
  }
  return absl::StrCat(kUnixPrefix, path);
}

absl::StatusOr<std::string> V6Target(absl::string_view endpoint) {
  const size_t close = endpoint.find(']');
  if (close == absl::string_view::npos) return InvalidEndpoint(endpoint, "has no closing bracket");
  const absl::string_view address = endpoint.substr(1, close - 1);
  absl::string_view port = endpoint.substr(close + 1);
  if (!IsV6(address)) return InvalidEndpoint(endpoint, "has no IPv6 address between its brackets");
  if (!absl::ConsumePrefix(&port, ":") || !IsPort(port)) return InvalidEndpoint(endpoint, "has no port of 1 to 65535");
  return absl::StrCat("dns:///%5B", address, "%5D:", port);  // Brackets must be escaped in a target's path.
}

// Returns the first line of the file; empty if there is none.
std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return std::string(absl::StripAsciiWhitespace(line));
}

absl::StatusOr<std::string> WaitForFile(const std::string& path, std::chrono::milliseconds timeout) {
  const Clock::Time deadline = DeadlineAfter(Clock::Real().Now(), timeout);
  while (true) {
    std::string line = FirstLine(path);
    if (!line.empty()) return line;
    if (Clock::Real().Now() >= deadline) break;
    if (absl::Status over = CheckCall(); !over.ok()) return over;
    SleepInCall(kFilePoll);
  }
  return MakeError(absl::StatusCode::kDeadlineExceeded,
                   absl::StrCat("endpoint: there is no address in the file ", path),
                   {.reason = Reason::kField, .field = "endpoint"});
}

}  // namespace

absl::StatusOr<std::string> EndpointOrEnvironment(absl::string_view endpoint) {
  if (!endpoint.empty()) return std::string(endpoint);
  const char* value = std::getenv(kEndpointVariable);
  if (value != nullptr && value[0] != '\0') return std::string(value);
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("endpoint: must be given, or set in ", kEndpointVariable),
                   {.reason = Reason::kField, .field = "endpoint"});
}

absl::StatusOr<std::string> GrpcTarget(absl::string_view endpoint) {
  absl::string_view rest = endpoint;
  if (absl::ConsumePrefix(&rest, kUnixPrefix)) return UnixTarget(endpoint, rest);
  if (absl::StartsWith(endpoint, "[")) return V6Target(endpoint);
  const size_t colon = endpoint.find(':');
  if (colon == absl::string_view::npos) return InvalidEndpoint(endpoint, "has no port");
  const absl::string_view host = endpoint.substr(0, colon);
  if (host.empty() || !std::all_of(host.begin(), host.end(), IsHostByte))
    return InvalidEndpoint(endpoint, "has no host name");
  if (!IsPort(endpoint.substr(colon + 1))) return InvalidEndpoint(endpoint, "has no port of 1 to 65535");
  // The explicit scheme is needed because a host may have the name of a scheme ("unix").
  return absl::StrCat("dns:///", endpoint);
}

std::string HostOf(absl::string_view target) {
  absl::ConsumePrefix(&target, kDnsPrefix);
  return absl::StrReplaceAll(target.substr(0, target.rfind(':')), {{"%5B", ""}, {"%5D", ""}});
}

absl::StatusOr<std::vector<ServerTarget>> ServerTargets(absl::string_view endpoint) {
  absl::string_view name = endpoint;
  if (absl::ConsumePrefix(&name, kDnsPrefix)) {
    if (absl::StrContains(name, ',')) return InvalidEndpoint(endpoint, "is a list of names");
    RR_ASSIGN_OR_RETURN(std::string target, GrpcTarget(name));
    return std::vector<ServerTarget>{{std::move(target), true}};
  }
  const std::vector<absl::string_view> members = absl::StrSplit(endpoint, ',');
  std::vector<ServerTarget> targets;
  std::string elsewhere;
  for (const absl::string_view member : members) {
    if (members.size() > 1 && absl::StartsWith(member, kUnixPrefix)) {
      return InvalidEndpoint(member, "is a socket, which must not be in a list or have a comma in its path");
    }
    RR_ASSIGN_OR_RETURN(std::string target, GrpcTarget(member));
    targets.push_back({std::move(target)});
    if (!IsLocalAddress(member)) elsewhere = targets.back().target;
    if (std::count(targets.begin(), targets.end(), targets.back()) > 1) {
      return InvalidEndpoint(member, absl::StrCat("is in the list \"", endpoint, "\" twice"));
    }
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    if (IsLocalAddress(members[i])) targets[i].elsewhere = elsewhere;
  }
  return targets;
}

absl::StatusOr<std::vector<ServerTarget>> ResolveEndpoint(absl::string_view endpoint,
                                                          std::chrono::milliseconds timeout) {
  absl::string_view path = endpoint;
  if (!absl::ConsumePrefix(&path, "file:")) return ServerTargets(endpoint);
  if (path.empty()) return InvalidEndpoint(endpoint, "has no path");
  RR_ASSIGN_OR_RETURN(const std::string written, WaitForFile(std::string(path), timeout));
  return ServerTargets(written);
}

absl::StatusOr<ServerTarget> ServerChoice::Wait(std::chrono::milliseconds timeout) {
  {
    MutexLock lock(mutex_);
    if (!targets_.empty()) return targets_[at_];
  }
  RR_ASSIGN_OR_RETURN(auto targets, ResolveEndpoint(endpoint_, timeout));
  MutexLock lock(mutex_);
  if (targets_.empty()) Take(std::move(targets));
  return targets_[at_];
}

bool ServerChoice::HasOthers() const {
  MutexLock lock(mutex_);
  return targets_.size() > 1 || (!targets_.empty() && targets_.front().round_robin);
}

void ServerChoice::OnUnavailable(absl::string_view target) {
  LookAgain();
  MutexLock lock(mutex_);
  if (!targets_.empty() && targets_[at_].target == target) at_ = (at_ + 1) % targets_.size();
}

void ServerChoice::LookAgain() {
  auto targets = ResolveEndpoint(endpoint_, std::chrono::milliseconds(0));
  if (!targets.ok()) return;
  MutexLock lock(mutex_);
  if (*targets != targets_) Take(*std::move(targets));
}

void ServerChoice::Take(std::vector<ServerTarget> targets) {
  targets_ = std::move(targets);
  at_ = begin_ % targets_.size();
}

}  // namespace routing_replay::client
