// C functions for clients, servers and runs, the states of samples, and single appends.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/c_api/calls.h"
#include "client/c_api/objects.h"
#include "client/c_api/values.h"
#include "client/call/cancellation.h"
#include "client/channel/client_security.h"
#include "client/channel/endpoint.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::c_api {

namespace {

// Pause between attempts to join a run that does not exist yet.
constexpr std::chrono::milliseconds kFirstLook(50), kLongestLook(1000);

// The clients of the process; clients with equal options share a connection.
class Clients {
 public:
  static Clients& Shared() {
    static Clients* const clients = new Clients;
    return *clients;
  }

  absl::StatusOr<std::shared_ptr<Client>> Get(const ClientOptions& options) {
    MutexLock lock(mutex_);
    std::erase_if(clients_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<Client>& place = clients_[options];
    std::shared_ptr<Client> client = place.lock();
    if (client != nullptr) return client;
    RR_ASSIGN_OR_RETURN(client, Client::Connect(options));
    place = client;
    return client;
  }

 private:
  Mutex mutex_;
  std::map<ClientOptions, std::weak_ptr<Client>> clients_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<ClientOptions> OptionsFrom(const rr_client_options& given) {
  RR_ASSIGN_OR_RETURN(auto endpoint, client::EndpointOrEnvironment(View(given.endpoint)));
  ClientOptions options{.endpoint = std::move(endpoint),
                        .security = client::OrEnvironment({.tls = given.tls > 0,
                                                           .cacert = String(given.cacert),
                                                           .cert = String(given.cert),
                                                           .key = String(given.key),
                                                           .server_name = String(given.server_name),
                                                           .token_file = String(given.token_file)})};
  if (given.call_timeout_ms >= 0) options.call_timeout = std::chrono::milliseconds(given.call_timeout_ms);
  return options;
}

// The arguments of OpenRun. Without a geometry, the run is only joined.
struct Opening {
  std::string name;
  std::optional<Geometry> geometry;
  RunSettings settings;
  std::optional<int64_t> resume_at;
  std::chrono::milliseconds wait;
};

absl::StatusOr<std::shared_ptr<Run>> OpenOnce(Client& client, const Opening& opening) {
  if (!opening.geometry) return client.JoinRun(opening.name);
  return client.OpenRun(opening.name, *opening.geometry, opening.settings, opening.resume_at);
}

bool IsNotThere(const absl::Status& status) {
  const Reason reason = GetErrorDetail(status).value_or(ErrorDetail()).reason;
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         (absl::IsNotFound(status) && reason == Reason::kNoRun);
}

absl::StatusOr<std::shared_ptr<Run>> Open(Client& client, const Opening& opening) {
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

}  // namespace routing_replay::c_api

using namespace routing_replay;         // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::c_api;  // NOLINT(build/namespaces)

rr_error* rr_client_new(const rr_client_options* options, rr_client** client) {
  return Guard([&]() -> CallEnd {
    RR_ASSIGN_OR_RETURN(const auto given, OptionsFrom(*options));
    return Into(client, Clients::Shared().Get(given), [](const auto& made) { return new rr_client(made); });
  });
}

rr_error* rr_client_open_run(rr_client* client, rr_text name, const rr_geometry* geometry,
                             const rr_run_settings* settings, rr_integer resume_at, int64_t wait_ms,
                             const rr_call* call, rr_run** run) {
  return Guard([&]() -> CallEnd {
    Opening opening{.name = String(name), .resume_at = Optional(resume_at), .wait = std::chrono::milliseconds(wait_ms)};
    if (geometry != nullptr) {
      RR_ASSIGN_OR_RETURN(opening.geometry, GeometryFrom(*geometry));
    }
    if (settings != nullptr) {
      RR_ASSIGN_OR_RETURN(opening.settings, SettingsFrom(*settings));
    }
    return Perform(call, [client = client->shared, opening = std::move(opening), run] {
      return Into(run, Open(*client, opening),
                  [](const auto& opened) { return new rr_run(std::make_shared<SharedRun>(opened)); });
    });
  });
}

rr_error* rr_client_server_info(rr_client* client, const rr_call* call, const rr_server_info** info) {
  return Guard([&] {
    return Perform(call,
                   [client = client->shared, info] { return Into(info, client->GetServerInfo(), NewServerInfo); });
  });
}

rr_error* rr_client_metrics(const rr_client* client, const rr_transports** transports) {
  return Guard([&]() -> CallEnd {
    const ClientMetrics metrics = client->shared->metrics();
    Result<rr_transports> result;
    *result = {.transport = result.Text(metrics.transport),
               .grpc_streams = metrics.grpc_streams,
               .direct_streams = metrics.direct_streams,
               .unix_streams = metrics.unix_streams,
               .shm_streams = metrics.shm_streams};
    *transports = result.Release();
    return absl::OkStatus();
  });
}

namespace {

rr_sample_states* NewState(const SampleState& state) { return NewStates({&state, 1}); }

}  // namespace

rr_error* rr_run_describe(const rr_run* run, const rr_run_info** info) {
  return Guard([&]() -> CallEnd {
    const Run& described = *run->shared->run;
    Result<rr_run_info> result;
    result->name = result.Text(described.name());
    Fill(described.geometry(), result, result->geometry);
    Fill(described.settings(), result, result->settings);
    result->dropped = Released(described.dropped());
    result->place = result.Text(described.place());
    const rr_texts places = result.Texts(described.places());
    result->places = places.data;
    result->place_count = places.count;
    *info = result.Release();
    return {};
  });
}

rr_error* rr_run_stat(rr_run* run, const rr_text* samples, size_t count, int32_t producer, const rr_call* call,
                      const rr_sample_states** states) {
  return Guard([&]() -> CallEnd {
    RR_ASSIGN_OR_RETURN(const auto whose, ProducerFrom(producer));
    return Perform(call, [run = run->shared->run, names = StringsFrom(samples, count), whose, states] {
      return Into(states, run->StatMany(names, whose), NewStates);
    });
  });
}

rr_error* rr_run_list(rr_run* run, const rr_range* groups, int32_t producer, const rr_call* call,
                      const rr_sample_states** states) {
  return Guard([&]() -> CallEnd {
    RR_ASSIGN_OR_RETURN(const auto whose, ProducerFrom(producer));
    return Perform(call, [run = run->shared->run, groups = GroupsFrom(groups), whose, states] {
      return Into(states, run->List(groups, whose), NewStates);
    });
  });
}

rr_error* rr_run_truncate(rr_run* run, rr_text sample, int32_t producer, int64_t rows, rr_integer expected_revision,
                          const rr_call* call, const rr_sample_states** state) {
  return Guard([&]() -> CallEnd {
    RR_ASSIGN_OR_RETURN(const auto whose, ProducerFrom(producer));
    return Perform(call,
                   [run = run->shared->run, name = String(sample), whose, rows, expected = Optional(expected_revision),
                    state] { return Into(state, run->Truncate(name, whose, rows, expected), NewState); });
  });
}

rr_error* rr_run_release(rr_run* run, const rr_text* samples, size_t count, const int64_t* handles, size_t handle_count,
                         const rr_range* groups, int32_t producer, const rr_call* call, rr_released* released) {
  return Guard([&]() -> CallEnd {
    RR_ASSIGN_OR_RETURN(const auto whose, ProducerOrBoth(producer));
    ReleaseOptions options{.producer = whose, .handles = {handles, handles + handle_count}};
    const auto work = [run = run->shared->run, names = StringsFrom(samples, count), groups = GroupsFrom(groups),
                       options = std::move(options), released] {
      const auto outcome =
          groups ? run->ReleaseGroups(groups->first, groups->second, options) : run->Release(names, options);
      return Into(released, outcome, Released);
    };
    return Perform(call, Once(work));
  });
}

rr_error* rr_run_drop(rr_run* run, const rr_call* call, rr_released* released) {
  return Guard([&] {
    return Perform(call, [run = run->shared->run, released] { return Into(released, run->Drop(), Released); });
  });
}

rr_error* rr_run_put(rr_run* run, const rr_append* append, const rr_call* call, const rr_outcomes** outcome) {
  return Guard([&]() -> CallEnd {
    const auto tokens = std::make_shared<std::vector<uint32_t>>();
    RR_ASSIGN_OR_RETURN(auto given, AppendFrom(*append, *tokens));
    const auto work = [run = run->shared->run, given = std::move(given), tokens, outcome] {
      const AppendOptions& options = given.options;
      auto put = given.tensor ? run->Put(options, *given.tensor, given.payload)
                              : run->PutUnrecorded(options, TotalRows(options.unrecorded));
      if (put.ok()) put->sample = options.sample;
      return Into(outcome, put, [](const AppendOutcome& one) { return NewOutcomes({&one, 1}); });
    };
    return Perform(call, Once(work));
  });
}
