#include "routing_replay/client.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/caller.h"
#include "client/channel/endpoint.h"
#include "client/run.h"
#include "client/shard/servers.h"
#include "proto/wire/message/message_fields.h"
#include "proto/wire/mutex.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {

using namespace client;  // NOLINT(google-build-using-namespace)

namespace {

using Stub = v1::RoutingReplay::Stub;

// Returns true if any setting is requested. Workers that join a run need not repeat its settings.
bool AsksForSomething(const RunSettings& settings) {
  return settings.ttl.count() != 0 || settings.strict || settings.block_rows != 0 || settings.codec ||
         settings.durability;
}

v1::RunOptions SettingsToProto(const RunSettings& settings) {
  v1::RunOptions options;
  options.set_ttl_ms(settings.ttl.count());
  options.set_strict(settings.strict);
  options.set_block_rows(settings.block_rows);
  options.set_codec(ToProto(settings.codec));
  options.set_durability(ToProto(settings.durability));
  return options;
}

absl::StatusOr<RunSettings> SettingsFromProto(const v1::RunOptions& options) {
  MessageFields fields;
  const auto block_rows = static_cast<int32_t>(fields.Count("options.block_rows", options.block_rows(), kMaxBlockRows));
  const RunSettings settings{.ttl = std::chrono::milliseconds(options.ttl_ms()),
                             .strict = options.strict(),
                             .block_rows = block_rows == 0 ? kDefaultBlockRows : block_rows,
                             .codec = fields.ReadAnyCodec("options.codec", options.codec()),
                             .durability = fields.ReadAnyDurability("options.durability", options.durability()),
                             .shard_fingerprint = options.shard_fingerprint()};
  if (!fields.status().ok()) return fields.status();
  return settings;
}

absl::StatusOr<OpenedRun> CallOpenRun(const Caller& caller, v1::OpenRunRequest request) {
  // With resume_at the call is not idempotent: only its first answer says what was removed.
  const Repeat repeat = request.has_resume_at() ? Repeat::kNever : Repeat::kAlways;
  RR_ASSIGN_OR_RETURN(const auto response, caller.Call(&Stub::OpenRun, request, repeat));
  RR_ASSIGN_OR_RETURN(auto geometry, FromProto(response.geometry()));
  RR_ASSIGN_OR_RETURN(const auto settings, SettingsFromProto(response.options()));
  const v1::ReleaseResponse& dropped = response.dropped();
  return OpenedRun{.geometry = std::move(geometry),
                   .settings = settings,
                   .max_message_bytes = static_cast<int64_t>(response.max_message_bytes()),
                   .max_payload_bytes = static_cast<int64_t>(response.max_payload_bytes()),
                   .dropped = {static_cast<int64_t>(dropped.samples()), static_cast<int64_t>(dropped.bytes())}};
}

absl::StatusOr<RunSummary> Summary(const v1::RunState& state) {
  RR_ASSIGN_OR_RETURN(auto geometry, FromProto(state.geometry()));
  RR_ASSIGN_OR_RETURN(auto settings, SettingsFromProto(state.options()));
  return RunSummary{.run = state.run(),
                    .geometry = std::move(geometry),
                    .settings = settings,
                    .samples = static_cast<int64_t>(state.samples()),
                    .sealed_samples = static_cast<int64_t>(state.sealed_samples()),
                    .committed_rows = static_cast<int64_t>(state.committed_rows()),
                    .stored_bytes = static_cast<int64_t>(state.stored_bytes())};
}

absl::StatusOr<std::vector<RunSummary>> CallListRuns(const Caller& caller) {
  std::vector<RunSummary> runs;
  v1::ListRunsRequest request;
  do {
    RR_ASSIGN_OR_RETURN(const auto page, caller.Call(&Stub::ListRuns, request));
    for (const v1::RunState& state : page.runs()) {
      RR_ASSIGN_OR_RETURN(auto summary, Summary(state));
      runs.push_back(std::move(summary));
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return runs;
}

std::vector<RunSummary> Merged(std::vector<std::vector<RunSummary>> parts) {
  std::map<std::string, RunSummary> runs;
  for (std::vector<RunSummary>& part : parts) {
    for (RunSummary& run : part) {
      const auto [at, is_new] = runs.try_emplace(run.run, run);
      if (is_new) continue;
      at->second.samples += run.samples;
      at->second.sealed_samples += run.sealed_samples;
      at->second.committed_rows += run.committed_rows;
      at->second.stored_bytes += run.stored_bytes;
    }
  }
  std::vector<RunSummary> merged;
  for (auto& [name, run] : runs) merged.push_back(std::move(run));
  return merged;
}

ServerSummary Merged(const std::vector<ServerSummary>& parts) {
  ServerSummary all{.version = parts[0].version, .store = parts[0].store, .uptime = parts[0].uptime};
  std::map<std::string, int64_t> counters;
  for (const ServerSummary& part : parts) {
    for (const auto sum :
         {&ServerSummary::budget_bytes, &ServerSummary::stored_bytes, &ServerSummary::reserved_bytes,
          &ServerSummary::spill_budget_bytes, &ServerSummary::spilled_bytes, &ServerSummary::samples}) {
      all.*sum += part.*sum;
    }
    all.runs = std::max(all.runs, part.runs);
    all.uptime = std::min(all.uptime, part.uptime);
    all.draining = all.draining || part.draining;
    for (const auto& [name, value] : part.counters) counters[name] += value;
  }
  all.counters.assign(counters.begin(), counters.end());
  return all;
}

class ClientImpl final : public Client {
 public:
  ClientImpl(std::shared_ptr<const Servers> given, ClientOptions options)
      : given_(std::move(given)), options_(std::move(options)) {}

  absl::StatusOr<std::shared_ptr<Run>> OpenRun(absl::string_view run, const Geometry& geometry,
                                               const RunSettings& settings, std::optional<int64_t> resume_at) override {
    v1::OpenRunRequest request;
    request.set_run(std::string(run));
    *request.mutable_geometry() = ToProto(geometry);
    if (AsksForSomething(settings)) *request.mutable_options() = SettingsToProto(settings);
    if (resume_at) request.set_resume_at(*resume_at);
    return Open(std::move(request), Needed::kAll);
  }

  // Joins the run on the members that can be reached; waits only if no member answers.
  absl::StatusOr<std::shared_ptr<Run>> JoinRun(absl::string_view run) override {
    v1::OpenRunRequest request;
    request.set_run(std::string(run));
    RR_ASSIGN_OR_RETURN(const auto servers, AllServers());
    const auto set_gone = [&servers](bool gone) {
      for (size_t place = 0; place < servers->size(); ++place) servers->at(place).set_gone(gone);
    };
    if (servers->members() != nullptr) set_gone(true);
    auto joined = Open(request, Needed::kThoseThatAnswer);
    if (servers->members() == nullptr || !IsUnreachable(joined.status())) return joined;
    set_gone(false);
    return Open(std::move(request), Needed::kThoseThatAnswer);
  }

  absl::StatusOr<std::vector<RunSummary>> ListRuns() override {
    RR_ASSIGN_OR_RETURN(const auto servers, AllServers());
    RR_ASSIGN_OR_RETURN(auto parts,
                        servers->OfAll(Needed::kAll, [&](size_t place) { return CallListRuns(servers->at(place)); }));
    return Merged(std::move(parts));
  }

  absl::StatusOr<ServerSummary> GetServerInfo() override {
    RR_ASSIGN_OR_RETURN(const auto servers, AllServers());
    RR_ASSIGN_OR_RETURN(const auto parts,
                        servers->OfAll(Needed::kAll, [&](size_t place) { return CallServerInfo(servers->at(place)); }));
    return Merged(parts);
  }

  ClientMetrics metrics() const override {
    ClientMetrics all;
    std::set<std::string> transports;
    const std::shared_ptr<const Servers> servers = Known();
    for (size_t place = 0; servers != nullptr && place < servers->size(); ++place) {
      const ClientMetrics one = servers->at(place).link()->metrics();
      all.grpc_streams += one.grpc_streams;
      all.direct_streams += one.direct_streams;
      all.unix_streams += one.unix_streams;
      all.shm_streams += one.shm_streams;
      if (!one.transport.empty()) transports.insert(one.transport);
    }
    all.transport = absl::StrJoin(transports, ",");
    return all;
  }

 private:
  std::shared_ptr<const Servers> Known() const {
    MutexLock lock(mutex_);
    return all_;
  }

  // Asks the server only once.
  absl::StatusOr<std::shared_ptr<const Servers>> AllServers() {
    if (auto known = Known()) return known;
    RR_ASSIGN_OR_RETURN(auto all, Servers::All(given_, options_));
    MutexLock lock(mutex_);
    if (all_ == nullptr) all_ = std::move(all);
    return all_;
  }

  absl::StatusOr<std::shared_ptr<Run>> Open(v1::OpenRunRequest request, Needed needed) {
    RR_ASSIGN_OR_RETURN(const auto servers, AllServers());
    if (servers->members() != nullptr) request.set_shard_fingerprint(servers->members()->fingerprint());
    const auto opened = servers->OfAll(needed, [&](size_t place) { return CallOpenRun(servers->at(place), request); });
    if (!opened.ok()) return opened.status();
    OpenedRun whole = opened->front();
    whole.dropped = {};
    for (const OpenedRun& other : *opened) {
      whole.dropped.samples += other.dropped.samples;
      whole.dropped.bytes += other.dropped.bytes;
      if (other.geometry == whole.geometry) continue;
      return MakeError(absl::StatusCode::kFailedPrecondition,
                       absl::StrCat("run \"", request.run(), "\" has ", whole.geometry.DebugString(),
                                    " on one server, ", other.geometry.DebugString(), " on another"),
                       {.reason = Reason::kGeometryMismatch, .field = "geometry"});
    }
    return MakeRun(servers, request.run(), whole);
  }

  const std::shared_ptr<const Servers> given_;
  const ClientOptions options_;
  mutable Mutex mutex_;
  std::shared_ptr<const Servers> all_ ABSL_GUARDED_BY(mutex_);  // Null: given_ was not asked for its list yet.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(ClientOptions options) {
  RR_ASSIGN_OR_RETURN(auto endpoint, EndpointOrEnvironment(options.endpoint));
  options.endpoint = std::move(endpoint);
  RR_ASSIGN_OR_RETURN(auto servers, Servers::Connect(options));
  return std::make_unique<ClientImpl>(std::move(servers), std::move(options));
}

}  // namespace routing_replay
