#include "client/rrctl/doctor/doctor.h"

#include <unistd.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/channel/client_security.h"
#include "client/rrctl/bench/bench.h"
#include "client/rrctl/doctor/connection_checks.h"
#include "client/rrctl/doctor/service_checks.h"
#include "client/rrctl/failure.h"
#include "proto/wire/human.h"

namespace routing_replay::client {
namespace {

constexpr int kLatencyCalls = 20;

Finding BadSettings(const ServerAddress& server, const absl::Status& why) {
  return {.server = server.endpoint,
          .check = "tls",
          .verdict = Verdict::kFail,
          .what = std::string(why.message()),
          .fix = "see --cacert, --cert, --key and --token-file"};
}

// As many findings of one server as make sense.
class ServerExaminer {
 public:
  ServerExaminer(const ServerAddress& server, const ClientOptions& client, const Environment& environment)
      : server_(server), client_(client), environment_(environment) {
    client_.endpoint = server.endpoint;
  }

  // True if the service answers there.
  bool Examine(std::vector<Finding>& findings) const {
    std::vector<SocketAddress> addresses, reached;
    findings.push_back(CheckName(server_, addresses));
    if (addresses.empty()) return false;
    findings.push_back(CheckProxy(server_, environment_));
    findings.push_back(CheckConnect(server_, addresses, client_.call_timeout, reached));
    if (reached.empty()) return false;
    const auto identity = Identity();
    if (!identity.ok()) {
      findings.push_back(BadSettings(server_, identity.status()));
      return false;
    }
    findings.push_back(CheckTls(server_, reached.front(), client_.call_timeout, *identity));
    return findings.back().verdict != Verdict::kFail && ExamineService(findings);
  }

 private:
  // What the client shows and trusts; nothing where it is to speak plaintext.
  absl::StatusOr<std::optional<TlsIdentity>> Identity() const {
    const auto targets = ServerTargets(server_.endpoint);
    if (!targets.ok()) return targets.status();
    const auto security = ClientSecurity::Create(client_.security, client_.use_http_proxy);
    if (!security.ok()) return security.status();
    if (const auto token = (*security)->Authorization(); !token.ok()) return token.status();
    const auto keys = (*security)->KeysFor(targets->front().target);
    if (!keys.ok()) return keys.status();
    if (!keys->encrypted) return std::optional<TlsIdentity>();
    return TlsIdentity{.authorities = keys->root_certificates,
                       .certificate = keys->certificate,
                       .key = keys->key,
                       .name = keys->server_name};
  }

  bool ExamineService(std::vector<Finding>& findings) const {
    const auto add = [&](Finding finding) {
      finding.server = server_.endpoint;
      findings.push_back(std::move(finding));
    };
    const auto link = Link::Open(client_.endpoint, client_.use_http_proxy, client_.security, client_.call_timeout);
    const auto first = link.ok() ? AskServer(Caller(*link, client_.call_timeout)) : link.status();
    add(CheckFirstAnswer(first));
    if (!first.ok()) return false;
    add(CheckVersion(first->info));
    if (findings.back().verdict == Verdict::kFail) return false;
    add(CheckLimits(first->info));
    std::vector<Clock::Duration> round_trips;
    Answer fastest = *first;
    for (int i = 0; i < kLatencyCalls; ++i) {
      const auto answer = AskServer(Caller(*link, client_.call_timeout));
      if (!answer.ok()) break;
      round_trips.push_back(answer->round_trip);
      if (answer->round_trip < fastest.round_trip) fastest = *answer;
    }
    if (round_trips.empty()) round_trips.push_back(first->round_trip);
    add(CheckLatency(std::move(round_trips)));
    add(CheckClock(fastest));
    return true;
  }

  const ServerAddress& server_;
  ClientOptions client_;
  const Environment& environment_;
};

Finding CheckBandwidth(const ClientOptions& options, const std::string& scratch) {
  Finding finding{.check = "bandwidth"};
  const auto client = Client::Connect(options);
  const auto measured = client.ok() ? RunBench(**client,
                                               {.samples = 8,
                                                .tokens = 2048,
                                                .workers = 2,
                                                .rounds = 1,
                                                .max_time = std::chrono::seconds(10),
                                                .run = scratch},
                                               {.interrupted =
                                                    [](std::chrono::milliseconds time) {
                                                      usleep(static_cast<useconds_t>(time.count() * 1000));
                                                      return false;
                                                    },
                                                .progress = [](const Progress&) {}})
                                    : client.status();
  if (absl::IsNotFound(measured.status()) || absl::IsPermissionDenied(measured.status())) {
    finding.verdict = Verdict::kWarn;
    finding.what = absl::StrCat("the token may not make the run ", scratch);
    finding.fix = "--scratch-run with the beginning of a name that it is for";
    return finding;
  }
  if (!measured.ok()) {
    finding.verdict = absl::IsFailedPrecondition(measured.status()) ? Verdict::kWarn : Verdict::kFail;
    finding.what = FailureText(measured.status());
    finding.fix = finding.verdict == Verdict::kWarn ? "release samples that were used" : "look into the server's log";
    return finding;
  }
  for (const Document& figure : (*measured)["figures"]) {
    const auto name = figure["name"].get<std::string>();
    if (name == "append_throughput") finding.facts["up_bytes_per_s"] = figure["median"];
    if (name == "read_throughput") finding.facts["down_bytes_per_s"] = figure["median"];
  }
  const auto rate = [&](const char* key) { return HumanBytes(static_cast<int64_t>(finding.facts[key].get<double>())); };
  finding.what = absl::StrCat("up ", rate("up_bytes_per_s"), "/s, down ", rate("down_bytes_per_s"),
                              "/s, by two workers with 8 samples of 2048 tokens");
  return finding;
}

// A refusal is no failure: it says what the token is for.
bool MayTransfer(const absl::StatusOr<Access>& access) {
  return access.ok() && access->put.value_or(true) && access->read.value_or(true) && access->admin.value_or(true);
}

}  // namespace

absl::StatusOr<std::vector<Finding>> Examine(const ClientOptions& client, const DoctorOptions& options,
                                             const Environment& environment) {
  const auto servers = ServersOf(client.endpoint, client.call_timeout);
  if (!servers.ok()) return servers.status();
  std::vector<Finding> findings;
  bool all_answer = true;
  for (const ServerAddress& server : *servers) {
    all_answer &= ServerExaminer(server, client, environment).Examine(findings);
  }
  if (!all_answer) return findings;
  const std::string scratch = absl::StrFormat("%s-%d-%08x", options.scratch, getpid(), std::random_device()());
  const auto link = Link::Open(servers->front().endpoint, client.use_http_proxy, client.security, client.call_timeout);
  const auto access = link.ok() ? ProbeAccess(Caller(*link, client.call_timeout), scratch) : link.status();
  findings.push_back(CheckAccess(access, scratch));
  if (options.transfer && MayTransfer(access)) {
    findings.push_back(CheckBandwidth(client, scratch));
  } else {
    findings.push_back({.check = "bandwidth",
                        .verdict = Verdict::kSkip,
                        .what = options.transfer ? "the token may not put, read and drop" : "not asked for"});
  }
  return findings;
}

}  // namespace routing_replay::client
