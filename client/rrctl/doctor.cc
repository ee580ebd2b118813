#include "client/rrctl/doctor.h"

#include <signal.h>

#include <algorithm>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/caller.h"
#include "client/channel/endpoint.h"
#include "client/rrctl/application.h"
#include "client/shard/servers.h"
#include "proto/wire/status_macros.h"

namespace routing_replay::client {
namespace {

using Stub = v1::RoutingReplay::Stub;

std::string FixOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnauthenticated:
      return "give the token that the server's operator made for you (--token-file), or a new one if it has expired";
    case absl::StatusCode::kPermissionDenied:
      return "ask the server's operator for a token with more scopes";
    case absl::StatusCode::kUnimplemented:
      return "another service listens there; check the port";
    case absl::StatusCode::kInvalidArgument:
      return "correct the named setting";
    case absl::StatusCode::kFailedPrecondition:
      return "install the server's release on this machine";
    default:
      return "read the server's log; a load balancer or mesh in between must pass HTTP/2";
  }
}

absl::StatusOr<v1::ServerInfo> AskServer(const Caller& caller) {
  return caller.Call(&Stub::GetServerInfo, v1::GetServerInfoRequest());
}

// Splits a target from GrpcTarget into its parts.
ServerAddress AddressOf(const ServerTarget& target) {
  absl::string_view rest = target.target;
  ServerAddress address;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    address.unix_path = std::string(rest);
    address.endpoint = target.target;
    return address;
  }
  absl::ConsumePrefix(&rest, "dns:///");
  const std::string plain = absl::StrReplaceAll(rest, {{"%5B", "["}, {"%5D", "]"}});
  address.host = HostOf(target.target);
  address.port = plain.substr(plain.rfind(':') + 1);
  address.endpoint = absl::StrCat(target.round_robin ? "dns:///" : "", plain);
  return address;
}

// Makes the checks of one server, up to the first failure.
class ServerExaminer {
 public:
  ServerExaminer(const ServerAddress& server, const ClientOptions& client, std::vector<Finding>& findings)
      : server_(server), client_(client), findings_(findings) {
    client_.endpoint = server.endpoint;
  }

  // Returns true if the service answers.
  bool Examine() {
    std::vector<SocketAddress> addresses, reached;
    Add(CheckName(server_, addresses));
    if (addresses.empty()) return false;
    Add(CheckConnect(addresses, client_.call_timeout, reached));
    if (reached.empty()) return false;
    const auto keys = Keys();
    if (!keys.ok()) {
      return Add(Failed("tls", std::string(keys.status().message()), "see --cacert, --cert, --key and --token-file"));
    }
    return Add(CheckTls(server_, reached.front(), client_.call_timeout, *keys)) && ExamineService();
  }

 private:
  // Returns false if the check failed.
  bool Add(Finding finding) {
    finding.server = server_.endpoint;
    findings_.push_back(std::move(finding));
    return findings_.back().verdict != Verdict::kFail;
  }

  // The client's keys and trusted authorities.
  absl::StatusOr<ChannelKeys> Keys() const {
    RR_ASSIGN_OR_RETURN(const auto targets, ServerTargets(server_.endpoint));
    RR_ASSIGN_OR_RETURN(const auto security, ClientSecurity::Create(client_.security));
    if (const auto token = security->Authorization(); !token.ok()) return token.status();
    return security->KeysFor(targets.front().target);
  }

  bool ExamineService() {
    const auto link = Link::Open(client_.endpoint, client_.security, client_.call_timeout);
    const auto info = link.ok() ? AskServer(Caller(*link, client_.call_timeout)) : link.status();
    if (!Add(CheckService(info))) return false;
    Add(CheckVersion(*info));
    const auto connection = (*link)->Connect();
    Add(CheckTransport(connection.ok() ? (*link)->LookForDirect(*connection) : connection.status()));
    return true;
  }

  const ServerAddress& server_;
  ClientOptions client_;
  std::vector<Finding>& findings_;
};

// Returns the other servers of the list that this server advertises; none if it advertises no list.
absl::StatusOr<std::vector<ServerAddress>> OthersOf(const ServerAddress& server, ClientOptions client) {
  client.endpoint = server.endpoint;
  RR_ASSIGN_OR_RETURN(auto servers, Servers::Connect(client));
  RR_ASSIGN_OR_RETURN(servers, Servers::All(servers, client));
  std::vector<ServerAddress> others;
  if (servers->members() == nullptr) return others;
  for (const std::string& member : servers->members()->endpoints()) {
    if (member == server.endpoint) continue;
    RR_ASSIGN_OR_RETURN(const auto targets, ServerTargets(member));
    others.push_back(AddressOf(targets.front()));
  }
  return others;
}

}  // namespace

Finding Failed(const char* check, std::string what, std::string fix) {
  return {.check = check, .verdict = Verdict::kFail, .what = std::move(what), .fix = std::move(fix)};
}

void Warn(Finding& finding, std::string fix) {
  finding.verdict = Verdict::kWarn;
  finding.fix = std::move(fix);
}

const char* VerdictName(Verdict verdict) {
  static constexpr const char* kNames[] = {"ok", "warn", "fail"};
  return kNames[static_cast<size_t>(verdict)];
}

Document ToDocument(const std::vector<Finding>& findings) {
  Verdict worst = Verdict::kOk;
  Document checks = Document::array();
  for (const Finding& finding : findings) {
    worst = std::max(worst, finding.verdict);
    checks.push_back({{"server", finding.server},
                      {"check", finding.check},
                      {"verdict", VerdictName(finding.verdict)},
                      {"what", finding.what},
                      {"fix", finding.fix}});
  }
  return {{"verdict", VerdictName(worst)}, {"checks", std::move(checks)}};
}

absl::StatusOr<std::vector<ServerAddress>> ServersOf(absl::string_view endpoint, std::chrono::milliseconds timeout) {
  RR_ASSIGN_OR_RETURN(const auto given, EndpointOrEnvironment(endpoint));
  std::vector<std::string> endpoints = {given};
  if (ShardMembers::IsShardEndpoint(given)) {
    RR_ASSIGN_OR_RETURN(const auto members, ShardMembers::Parse(given));
    endpoints = members.endpoints();
  }
  std::vector<ServerAddress> servers;
  for (const std::string& one : endpoints) {
    RR_ASSIGN_OR_RETURN(const auto targets, ResolveEndpoint(one, timeout));
    for (const ServerTarget& target : targets) servers.push_back(AddressOf(target));
  }
  return servers;
}

Finding CheckService(const absl::StatusOr<v1::ServerInfo>& info) {
  if (!info.ok()) return Failed("service", FailureText(info.status()), FixOf(info.status()));
  Finding finding{.check = "service", .what = absl::StrCat("answers, store ", info->store())};
  if (info->draining()) {
    finding.what = "is shutting down";
    Warn(finding, "wait until a new server has taken its place");
  }
  return finding;
}

Finding CheckVersion(const v1::ServerInfo& info) {
  Finding finding{.check = "version",
                  .what = absl::StrCat("server ", info.version(), ", rrctl ", ROUTING_REPLAY_VERSION)};
  if (info.version() != ROUTING_REPLAY_VERSION) {
    Warn(finding, absl::StrCat("install the packages of release ", info.version()));
  }
  return finding;
}

Finding CheckTransport(const absl::StatusOr<std::string>& way) {
  Finding finding{.check = "transport"};
  if (way.ok()) {
    finding.what = absl::StrCat("appends and reads bypass gRPC and use ", *way);
    return finding;
  }
  finding.what = absl::StrCat("appends and reads go over gRPC: ", way.status().message());
  if (absl::IsNotFound(way.status())) return finding;
  Warn(finding, absl::StrCat("open the server's direct path port (7403 if gRPC has 7400) to this machine, or set ",
                             kTransportVariable, "=grpc here"));
  return finding;
}

absl::StatusOr<std::vector<Finding>> Examine(const ClientOptions& client) {
  // Ignores SIGPIPE, because a server may close a connection during a handshake.
  const absl::Cleanup restore = [before = signal(SIGPIPE, SIG_IGN)] { signal(SIGPIPE, before); };
  RR_ASSIGN_OR_RETURN(const auto servers, ServersOf(client.endpoint, client.call_timeout));
  std::vector<Finding> findings;
  bool all_answer = true;
  for (const ServerAddress& server : servers) all_answer &= ServerExaminer(server, client, findings).Examine();
  if (!all_answer || servers.size() > 1) return findings;
  RR_ASSIGN_OR_RETURN(const auto others, OthersOf(servers.front(), client));
  for (const ServerAddress& server : others) ServerExaminer(server, client, findings).Examine();
  return findings;
}

void AddDoctor(Application& application) {
  application.Add(
      "doctor",
      "check whether this machine can use the server; if not, say why and how to fix it\n"
      "Checks name, connection, TLS, service with the token, version and transport of every server of the endpoint. "
      "Exit code 1 if a check failed.",
      [](Session& session) {
        session.ExitCodeIsTheAnswer();
        RR_ASSIGN_OR_RETURN(const auto findings, Examine(session.options()));
        const Document found = ToDocument(findings);
        if (found["verdict"] == VerdictName(Verdict::kFail)) session.AnswerNo();
        session.output().PrintWithTable(found, "checks");
        return session.output().Flush();
      });
}

}  // namespace routing_replay::client
