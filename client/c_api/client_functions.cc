// Clients: what they are made from, runs and servers; and runs: what they are, the states of their samples, and single
// appends.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/c_api/calls.h"
#include "client/c_api/objects.h"
#include "client/c_api/values.h"
#include "client/call/cancellation.h"
#include "client/channel/endpoint.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::c_api {

namespace {

// Between looks for a run that is waited for.
constexpr std::chrono::milliseconds kFirstLook(50), kLongestLook(1000);

// All that makes two clients different, what is taken from the environment included.
std::string KeyOf(const ClientOptions& options) {
  const SecuritySettings& security = options.security;
  std::string key;
  const auto add = [&key](absl::string_view part) { absl::StrAppend(&key, part.size(), ":", part, ","); };
  add(options.endpoint);
  for (const int64_t number : {int64_t{options.use_http_proxy}, int64_t{security.tls}, options.call_timeout.count()}) {
    add(absl::StrCat(number));
  }
  for (const std::string* text :
       {&security.cacert, &security.cert, &security.key, &security.server_name, &security.token_file}) {
    add(*text);
  }
  for (const char* name : {"TLS", "CACERT", "CERT", "KEY", "SERVER_NAME", "TOKEN_FILE"}) {
    const char* value = std::getenv(absl::StrCat("ROUTING_REPLAY_", name).c_str());
    add(value == nullptr ? "" : value);
  }
  return key;
}

// The clients of the process: equal ones share a transport.
class Clients {
 public:
  static Clients& Shared() {
    static Clients* const clients = new Clients;
    return *clients;
  }

  absl::StatusOr<std::shared_ptr<Client>> Get(const ClientOptions& options) {
    const std::string key = KeyOf(options);
    if (std::shared_ptr<Client> known = Find(key)) return known;
    auto made = Client::Connect(options);
    if (!made.ok()) return made.status();
    MutexLock lock(mutex_);
    std::erase_if(clients_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<Client>& place = clients_[key];
    std::shared_ptr<Client> client = place.lock();
    if (client == nullptr) place = client = *std::move(made);
    return client;
  }

 private:
  std::shared_ptr<Client> Find(const std::string& key) {
    MutexLock lock(mutex_);
    const auto at = clients_.find(key);
    return at == clients_.end() ? nullptr : at->second.lock();
  }

  Mutex mutex_;
  std::map<std::string, std::weak_ptr<Client>> clients_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<ClientOptions> OptionsFrom(const rr_client_options& given) {
  auto endpoint = client::EndpointOrEnvironment(View(given.endpoint));
  if (!endpoint.ok()) return endpoint.status();
  ClientOptions options{.endpoint = *std::move(endpoint),
                        .security = {.tls = given.tls > 0,
                                     .cacert = String(given.cacert),
                                     .cert = String(given.cert),
                                     .key = String(given.key),
                                     .server_name = String(given.server_name),
                                     .token_file = String(given.token_file)},
                        .use_http_proxy = given.use_http_proxy != 0};
  if (given.call_timeout_ms >= 0) options.call_timeout = std::chrono::milliseconds(given.call_timeout_ms);
  return options;
}

// What an opening asks for. No geometry: joins only.
struct Opening {
  std::string name;
  std::optional<Geometry> geometry;
  RunSettings settings;
  std::optional<int64_t> resume_at;
  std::chrono::milliseconds wait;
};

absl::StatusOr<std::shared_ptr<Run>> OpenOnce(LazyClient& client, const Opening& opening) {
  const auto connected = client.Get();
  if (!connected.ok()) return connected.status();
  if (!opening.geometry) return (*connected)->JoinRun(opening.name);
  return (*connected)->OpenRun(opening.name, *opening.geometry, opening.settings, opening.resume_at);
}

bool IsNotThere(const absl::Status& status) {
  const Reason reason = GetErrorDetail(status).value_or(ErrorDetail()).reason;
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         (absl::IsNotFound(status) && reason == Reason::kNoRun);
}

absl::StatusOr<std::shared_ptr<Run>> Open(LazyClient& client, const Opening& opening) {
  const Clock::Time end = client::NoLaterThanCall(DeadlineAfter(Clock::Real().Now(), opening.wait));
  Clock::Duration pause = kFirstLook;
  while (true) {
    auto run = OpenOnce(client, opening);
    if (run.ok() || opening.wait.count() <= 0 || !IsNotThere(run.status())) return run;
    const Clock::Duration left = end - Clock::Real().Now();
    if (left <= Clock::Duration::zero()) {
      const double seconds = std::chrono::duration<double>(opening.wait).count();
      return MakeError(
          absl::StatusCode::kDeadlineExceeded,
          absl::StrCat("run ", opening.name, " could not be joined within ", seconds, " s: ", run.status().message()),
          {.reason = GetErrorDetail(run.status()).value_or(ErrorDetail()).reason});
    }
    client::SleepInCall(std::min(pause, left));
    if (absl::Status over = client::CheckCall(); absl::IsCancelled(over)) return over;
    pause = std::min<Clock::Duration>(2 * pause, kLongestLook);
  }
}

rr_runs* NewRuns(const std::vector<RunSummary>& runs) {
  Result<rr_runs> result;
  const auto list = result.Array<rr_run_summary>(runs.size());
  for (size_t i = 0; i < list.size(); ++i) {
    list[i].name = result.Text(runs[i].run);
    Fill(runs[i].geometry, result, list[i].geometry);
    Fill(runs[i].settings, result, list[i].settings);
    list[i].samples = runs[i].samples;
    list[i].sealed_samples = runs[i].sealed_samples;
    list[i].committed_rows = runs[i].committed_rows;
    list[i].stored_bytes = runs[i].stored_bytes;
  }
  *result = {list.data(), list.size()};
  return result.Release();
}

rr_server_info* NewServerInfo(const ServerSummary& summary) {
  Result<rr_server_info> info;
  *info = {.version = info.Text(summary.version),
           .store = info.Text(summary.store),
           .budget_bytes = summary.budget_bytes,
           .stored_bytes = summary.stored_bytes,
           .reserved_bytes = summary.reserved_bytes,
           .samples = summary.samples,
           .runs = summary.runs,
           .uptime_ms = summary.uptime.count(),
           .spill_budget_bytes = summary.spill_budget_bytes,
           .spilled_bytes = summary.spilled_bytes,
           .draining = summary.draining ? 1 : 0,
           .counters = Counters(summary.counters, info)};
  return info.Release();
}

}  // namespace

absl::Status LazyClient::TryConnect() {
  if (absl::StrContains(options_.endpoint, "file:")) {
    ClientOptions impatient = options_;
    impatient.call_timeout = std::chrono::milliseconds(0);
    const absl::Status status = Client::Connect(std::move(impatient)).status();
    if (!status.ok()) return absl::IsDeadlineExceeded(status) ? absl::OkStatus() : status;
  }
  return Get().status();
}

absl::StatusOr<std::shared_ptr<Client>> LazyClient::Get() {
  {
    MutexLock lock(mutex_);
    if (client_ != nullptr) return client_;
  }
  auto client = Clients::Shared().Get(options_);
  if (!client.ok()) return client.status();
  MutexLock lock(mutex_);
  if (client_ == nullptr) client_ = *std::move(client);
  return client_;
}

}  // namespace routing_replay::c_api

using namespace routing_replay;         // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::c_api;  // NOLINT(build/namespaces)

rr_error* rr_client_new(const rr_client_options* options, rr_client** client) {
  return Guard([&]() -> CallEnd {
    auto given = OptionsFrom(*options);
    if (!given.ok()) return given.status();
    auto made = std::make_shared<LazyClient>(*std::move(given));
    if (absl::Status status = made->TryConnect(); !status.ok()) return status;
    *client = new rr_client{std::move(made)};
    return {};
  });
}

rr_error* rr_client_open_run(rr_client* client, rr_text name, const rr_geometry* geometry,
                             const rr_run_settings* settings, rr_integer resume_at, int64_t wait_ms,
                             const rr_call* call, rr_run** run) {
  return Guard([&]() -> CallEnd {
    Opening opening{.name = String(name), .resume_at = Optional(resume_at), .wait = std::chrono::milliseconds(wait_ms)};
    if (geometry != nullptr) {
      auto made = GeometryFrom(*geometry);
      if (!made.ok()) return made.status();
      opening.geometry = *std::move(made);
    }
    if (settings != nullptr) {
      const auto asked = SettingsFrom(*settings);
      if (!asked.ok()) return asked.status();
      opening.settings = *asked;
    }
    return Perform(call, [client = client->client, opening = std::move(opening), run]() -> CallEnd {
      auto opened = Open(*client, opening);
      if (!opened.ok()) return opened.status();
      *run = new rr_run{std::make_shared<SharedRun>(*std::move(opened))};
      return {};
    });
  });
}

rr_error* rr_client_runs(rr_client* client, const rr_call* call, const rr_runs** runs) {
  return Guard([&] {
    return Perform(call, [client = client->client, runs]() -> CallEnd {
      const auto connected = client->Get();
      if (!connected.ok()) return connected.status();
      const auto list = (*connected)->ListRuns();
      if (!list.ok()) return list.status();
      *runs = NewRuns(*list);
      return {};
    });
  });
}

rr_error* rr_client_server_info(rr_client* client, const rr_call* call, const rr_server_info** info) {
  return Guard([&] {
    return Perform(call, [client = client->client, info]() -> CallEnd {
      const auto connected = client->Get();
      if (!connected.ok()) return connected.status();
      const auto summary = (*connected)->GetServerInfo();
      if (!summary.ok()) return summary.status();
      *info = NewServerInfo(*summary);
      return {};
    });
  });
}

namespace {

CallEnd Give(const absl::StatusOr<std::vector<SampleState>>& states, const rr_sample_states** out) {
  if (!states.ok()) return states.status();
  *out = NewStates(*states);
  return {};
}

CallEnd Give(const absl::StatusOr<SampleState>& state, const rr_sample_states** out) {
  if (!state.ok()) return state.status();
  *out = NewStates({&*state, 1});
  return {};
}

CallEnd Give(const absl::StatusOr<ReleaseOutcome>& outcome, rr_released* out) {
  if (!outcome.ok()) return outcome.status();
  *out = Released(*outcome);
  return {};
}

CallEnd Give(const absl::StatusOr<AppendOutcome>& outcome, const std::string& sample, const rr_outcomes** out) {
  if (!outcome.ok()) return outcome.status();
  Result<rr_outcomes> result;
  const auto list = result.Array<rr_outcome>(1);
  Fill(*outcome, result, list[0]);
  list[0].sample = result.Text(sample);
  *result = {list.data(), list.size()};
  *out = result.Release();
  return {};
}

}  // namespace

rr_error* rr_run_describe(const rr_run* run, const rr_run_info** info) {
  return Guard([&]() -> CallEnd {
    const Run& described = *run->run->run;
    Result<rr_run_info> result;
    result->name = result.Text(described.name());
    Fill(described.geometry(), result, result->geometry);
    Fill(described.settings(), result, result->settings);
    result->dropped = Released(described.dropped());
    *info = result.Release();
    return {};
  });
}

rr_error* rr_run_stat(rr_run* run, const rr_text* samples, size_t count, int32_t producer, const rr_call* call,
                      const rr_sample_states** states) {
  return Guard([&]() -> CallEnd {
    const auto whose = ProducerFrom(producer);
    if (!whose.ok()) return whose.status();
    return Perform(call, [run = run->run, names = StringsFrom(samples, count), whose = *whose, states] {
      return Give(run->run->StatMany(names, whose), states);
    });
  });
}

rr_error* rr_run_list(rr_run* run, const rr_range* groups, int32_t producer, const rr_call* call,
                      const rr_sample_states** states) {
  return Guard([&]() -> CallEnd {
    const auto whose = ProducerFrom(producer);
    if (!whose.ok()) return whose.status();
    return Perform(call, [run = run->run, groups = GroupsFrom(groups), whose = *whose, states] {
      return Give(run->run->List(groups, whose), states);
    });
  });
}

rr_error* rr_run_seal(rr_run* run, rr_text sample, int32_t producer, int64_t num_tokens, int64_t revision,
                      const rr_call* call, const rr_sample_states** state) {
  return Guard([&]() -> CallEnd {
    const auto whose = ProducerFrom(producer);
    if (!whose.ok()) return whose.status();
    return Perform(call, [run = run->run, name = String(sample), whose = *whose, num_tokens, revision, state] {
      return Give(run->run->Seal(name, whose, num_tokens, revision), state);
    });
  });
}

rr_error* rr_run_truncate(rr_run* run, rr_text sample, int32_t producer, int64_t rows, rr_integer expected_revision,
                          const rr_call* call, const rr_sample_states** state) {
  return Guard([&]() -> CallEnd {
    const auto whose = ProducerFrom(producer);
    if (!whose.ok()) return whose.status();
    return Perform(call,
                   [run = run->run, name = String(sample), whose = *whose, rows, expected = Optional(expected_revision),
                    state] { return Give(run->run->Truncate(name, whose, rows, expected), state); });
  });
}

rr_error* rr_run_release(rr_run* run, const rr_text* samples, size_t count, const int64_t* handles, size_t handle_count,
                         const rr_range* groups, int32_t producer, const rr_call* call, rr_released* released) {
  return Guard([&]() -> CallEnd {
    const auto whose = ProducerOrBoth(producer);
    if (!whose.ok()) return whose.status();
    ReleaseOptions options{.producer = *whose, .handles = {handles, handles + handle_count}};
    const auto work = [run = run->run, names = StringsFrom(samples, count), groups = GroupsFrom(groups),
                       options = std::move(options), released] {
      if (groups) return Give(run->run->ReleaseGroups(groups->first, groups->second, options), released);
      return Give(run->run->Release(names, options), released);
    };
    return Perform(call, Once(work));
  });
}

rr_error* rr_run_drop(rr_run* run, const rr_call* call, rr_released* released) {
  return Guard([&] { return Perform(call, [run = run->run, released] { return Give(run->run->Drop(), released); }); });
}

rr_error* rr_run_put(rr_run* run, const rr_append* append, const rr_call* call, const rr_outcomes** outcome) {
  return Guard([&]() -> CallEnd {
    const auto tokens = std::make_shared<std::vector<uint32_t>>();
    auto given = AppendFrom(*append, *tokens);
    if (!given.ok()) return given.status();
    const auto work = [run = run->run, given = *std::move(given), tokens, outcome] {
      const AppendOptions& options = given.options;
      if (!given.tensor) {
        return Give(run->run->PutUnrecorded(options, TotalRows(options.unrecorded)), options.sample, outcome);
      }
      return Give(run->run->Put(options, *given.tensor, given.payload), options.sample, outcome);
    };
    return Perform(call, Once(work));
  });
}
