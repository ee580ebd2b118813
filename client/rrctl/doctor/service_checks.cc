#include "client/rrctl/doctor/service_checks.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/rrctl/failure.h"
#include "client/server_limits.h"
#include "proto/wire/human.h"

namespace routing_replay::client {
namespace {

using Stub = v1::RoutingReplay::Stub;

constexpr double kSlowMs = 50;
constexpr double kFullShare = 0.85;
// What a skew of this much may break: tokens' and certificates' ends, and the order of log lines …
constexpr double kSkewWarnSeconds = 2;
// … and beyond this servers over Redis remove nothing any more.
constexpr double kSkewFailSeconds = 60;

double Milliseconds(Clock::Duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

std::string FixOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnauthenticated:
      return "give the token that the server's operator made for you (--token-file), or a new one if it has expired";
    case absl::StatusCode::kPermissionDenied:
      return "ask the server's operator for a token with more scopes";
    case absl::StatusCode::kUnimplemented:
      return "another service listens there; check the port";
    case absl::StatusCode::kInvalidArgument:
      return "correct the setting that is named";
    case absl::StatusCode::kFailedPrecondition:
      return "install the release of the server here";
    default:
      return "look into the server's log; a load balancer or mesh in between must pass HTTP/2";
  }
}

// Whether the call is allowed: the run is not there, so that an allowed call says so.
absl::StatusOr<std::optional<bool>> Allowed(const absl::Status& end) {
  if (absl::IsPermissionDenied(end)) return std::optional<bool>(false);
  if (absl::IsNotFound(end)) return std::optional<bool>();
  return end.ok() ? absl::InternalError("a run that nobody made is there") : end;
}

}  // namespace

absl::StatusOr<Answer> AskServer(const Caller& caller) {
  const Clock& clock = Clock::Real();
  const auto begin_of_day = clock.TimeOfDay();
  const Clock::Time begin = clock.Now();
  auto info = caller.Call(&Stub::GetServerInfo, v1::GetServerInfoRequest());
  if (!info.ok()) return info.status();
  const Clock::Duration took = clock.Now() - begin;
  const auto half = std::chrono::duration_cast<std::chrono::system_clock::duration>(took / 2);
  return Answer{.info = *std::move(info), .round_trip = took, .middle = begin_of_day + half};
}

Finding CheckFirstAnswer(const absl::StatusOr<Answer>& answer) {
  Finding finding{.check = "service"};
  if (answer.ok()) {
    finding.what = absl::StrCat("answers, store ", answer->info.store());
    if (answer->info.draining()) {
      finding.verdict = Verdict::kWarn;
      finding.what = "is shutting down";
      finding.fix = "wait for the server that comes after it";
    }
    return finding;
  }
  finding.verdict = Verdict::kFail;
  finding.what = FailureText(answer.status());
  finding.fix = FixOf(answer.status());
  return finding;
}

Finding CheckVersion(const v1::ServerInfo& info) {
  const std::vector<std::string> features(info.features().begin(), info.features().end());
  Finding finding{.check = "version",
                  .facts = {{"server", info.version()}, {"client", ROUTING_REPLAY_VERSION}, {"features", features}}};
  finding.what = absl::StrCat("server ", info.version(), ", rrctl ", ROUTING_REPLAY_VERSION, "; ", features.size(),
                              " features: ", absl::StrJoin(features, ", "));
  const absl::Status status = CheckServerVersion(info.version());
  if (!status.ok()) {
    finding.verdict = Verdict::kFail;
    finding.what = std::string(status.message());
    finding.fix = absl::StrCat("install the packages of release ", info.version());
  } else if (info.version() != ROUTING_REPLAY_VERSION) {
    finding.verdict = Verdict::kWarn;
    finding.fix = "servers serve clients of the two minor releases before theirs; update what is older";
  }
  return finding;
}

Finding CheckLimits(const v1::ServerInfo& info) {
  Finding finding{.check = "limits",
                  .facts = {{"max_message_bytes", info.max_message_bytes()},
                            {"max_payload_bytes", info.max_payload_bytes()},
                            {"budget_bytes", info.budget_bytes()},
                            {"stored_bytes", info.stored_bytes()},
                            {"reserved_bytes", info.reserved_bytes()},
                            {"spill_budget_bytes", info.spill_budget_bytes()},
                            {"spilled_bytes", info.spilled_bytes()}}};
  const uint64_t used = info.stored_bytes() + info.reserved_bytes();
  const auto bytes = [](uint64_t value) { return HumanBytes(static_cast<int64_t>(value)); };
  finding.what = absl::StrCat("memory ", bytes(used), " of ", bytes(info.budget_bytes()));
  if (info.spill_budget_bytes() > 0) {
    absl::StrAppend(&finding.what, ", spilled ", bytes(info.spilled_bytes()), " of ", bytes(info.spill_budget_bytes()));
  }
  if (info.max_message_bytes() > 0) {
    absl::StrAppend(&finding.what, "; messages up to ", bytes(info.max_message_bytes()), ", payloads up to ",
                    bytes(info.max_payload_bytes()));
  }
  if (static_cast<double>(used) > kFullShare * static_cast<double>(info.budget_bytes())) {
    finding.verdict = Verdict::kWarn;
    finding.fix = "release samples that were used, or give the server a bigger --memory-budget or a --spill-directory";
  }
  return finding;
}

Finding CheckLatency(std::vector<Clock::Duration> round_trips) {
  std::sort(round_trips.begin(), round_trips.end());
  const double median = Milliseconds(round_trips[round_trips.size() / 2]);
  const double worst = Milliseconds(round_trips.back());
  Finding finding{
      .check = "latency",
      .what = absl::StrFormat("round trip %.2f ms, worst %.2f ms of %d calls", median, worst, round_trips.size()),
      .facts = {{"median_s", median / 1000},
                {"min_s", Milliseconds(round_trips.front()) / 1000},
                {"max_s", worst / 1000},
                {"calls", round_trips.size()}}};
  if (median > kSlowMs) {
    finding.verdict = Verdict::kWarn;
    finding.fix = "place the server in the same zone as the trainer, or look for what slows the network";
  }
  return finding;
}

Finding CheckClock(const Answer& fastest) {
  Finding finding{.check = "clock"};
  if (fastest.info.time_ms() == 0) {
    finding.verdict = Verdict::kSkip;
    finding.what = "the server does not tell its time";
    return finding;
  }
  const std::chrono::system_clock::time_point theirs{std::chrono::milliseconds(fastest.info.time_ms())};
  const double skew = std::chrono::duration<double>(theirs - fastest.middle).count();
  const double doubt = Milliseconds(fastest.round_trip) / 2000 + 0.001;
  finding.facts = {{"skew_s", skew}, {"doubt_s", doubt}};
  finding.what = absl::StrFormat("the server's clock is %.3f s %s this one's, give or take %.3f s", std::abs(skew),
                                 skew < 0 ? "behind" : "ahead of", doubt);
  const double sure = std::abs(skew) - doubt;
  if (sure > kSkewWarnSeconds) {
    finding.verdict = sure > kSkewFailSeconds ? Verdict::kFail : Verdict::kWarn;
    finding.fix = "synchronize both clocks (chrony, systemd-timesyncd)";
  }
  return finding;
}

absl::StatusOr<Access> ProbeAccess(const Caller& caller, const std::string& scratch) {
  v1::DropRunRequest drop;
  drop.set_run(scratch);
  v1::ListRequest list;
  list.set_run(scratch);
  v1::SealRequest seal;
  seal.set_run(scratch);
  seal.set_sample("none");
  seal.set_producer(v1::PRODUCER_ROLLOUT);
  seal.set_num_tokens(1);
  const auto admin = Allowed(caller.Call(&Stub::DropRun, drop).status());
  if (!admin.ok()) return admin.status();
  const auto read = Allowed(caller.Call(&Stub::List, list).status());
  if (!read.ok()) return read.status();
  const auto put = Allowed(caller.Call(&Stub::Seal, seal).status());
  if (!put.ok()) return put.status();
  Access access{.put = *put, .read = *read, .admin = *admin};
  // A refusal shows that the token knows of the run: then what is not refused is allowed.
  if (!access.put && !access.read && !access.admin) return access;
  for (std::optional<bool>* scope : {&access.put, &access.read, &access.admin}) *scope = scope->value_or(true);
  return access;
}

Finding CheckAccess(const absl::StatusOr<Access>& access, const std::string& scratch) {
  Finding finding{.check = "access"};
  if (!access.ok()) {
    finding.verdict = Verdict::kFail;
    finding.what = FailureText(access.status());
    finding.fix = FixOf(access.status());
    return finding;
  }
  std::vector<std::string> allowed, refused;
  const auto sort = [&](const char* name, std::optional<bool> scope) {
    finding.facts[name] = scope ? Document(*scope) : Document();
    if (scope) (*scope ? allowed : refused).push_back(name);
  };
  sort("put", access->put);
  sort("read", access->read);
  sort("admin", access->admin);
  if (allowed.empty() && refused.empty()) {
    finding.what = absl::StrCat("nothing is refused on a run like ", scratch);
    return finding;
  }
  finding.what =
      absl::StrCat("on a run like ", scratch, ": ", allowed.empty() ? "nothing" : absl::StrJoin(allowed, ", "),
                   " allowed, ", absl::StrJoin(refused, ", "), " refused");
  return finding;
}

}  // namespace routing_replay::client
