#include "routing_replay/client.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/appender/append_plan.h"
#include "client/appender/appender.h"
#include "client/caller.h"
#include "client/channel/endpoint.h"
#include "client/reader/decoded_rows.h"
#include "client/reader/read_checker.h"
#include "client/reader/reader.h"
#include "client/shard/servers.h"
#include "client/shard/sharded.h"
#include "proto/wire/message/append_message.h"
#include "proto/wire/message/byte_chain.h"
#include "proto/wire/message/message_fields.h"
#include "proto/wire/mutex.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {

using namespace client;  // NOLINT(google-build-using-namespace)

namespace {

using Stub = v1::RoutingReplay::Stub;

// Adds the answer to one Put of an append to the append's outcome.
absl::Status AddPutAnswer(const v1::AppendAck& answer, AppendOutcome& outcome) {
  const std::string bytes = answer.SerializeAsString();
  const auto ack = ParseAppendAck(ByteChain({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
  if (!ack.ok()) return absl::InternalError(absl::StrCat("unreadable ack: ", ack.status().message()));
  if (!ack->error.ok()) return ack->error;
  outcome.sample = ack->sample;
  AddAck(*ack, outcome);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SampleState>> States(const google::protobuf::RepeatedPtrField<v1::SampleState>& messages) {
  std::vector<SampleState> states;
  states.reserve(messages.size());
  for (const v1::SampleState& message : messages) {
    RR_ASSIGN_OR_RETURN(SampleState state, FromProto(message));
    states.push_back(std::move(state));
  }
  return states;
}

v1::StatRequest MakeStat(const std::string& run, Producer producer, absl::Span<const std::string> samples) {
  v1::StatRequest request;
  request.set_run(run);
  request.set_producer(ToProto(producer));
  for (const std::string& sample : samples) request.add_samples(sample);
  return request;
}

absl::StatusOr<v1::AppendRequest> MakePut(const std::string& run, const AppendPiece& piece) {
  std::string bytes = EncodeAppendRequest({.run = run, .append = piece.header}, piece.payload_bytes);
  for (const absl::Span<const uint8_t> part : piece.payload) bytes.append(part.begin(), part.end());
  v1::AppendRequest request;
  if (!request.ParseFromString(bytes)) {
    return Invalid({.reason = Reason::kField, .field = "append", .sample = piece.header.sample}, "a text is not UTF-8");
  }
  return request;
}

// Returns true if a smaller request (fewer samples) could succeed.
bool IsTooLong(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  return absl::IsResourceExhausted(status) && detail && detail->reason == Reason::kLength;
}

// `response`: the answer to Release or DropRun.
template <typename Response>
ReleaseOutcome Released(const Response& response) {
  return {static_cast<int64_t>(response.samples()), static_cast<int64_t>(response.bytes())};
}

absl::StatusOr<ReleaseOutcome> Sum(const absl::StatusOr<std::vector<ReleaseOutcome>>& parts) {
  if (!parts.ok()) return parts.status();
  ReleaseOutcome total;
  for (const ReleaseOutcome& part : *parts) {
    total.samples += part.samples;
    total.bytes += part.bytes;
  }
  return total;
}

// The answer of one server to OpenRun. All servers must have the same geometry.
struct OpenedRun {
  Geometry geometry;
  RunSettings settings;
  int64_t max_message_bytes = 0;
  int64_t max_payload_bytes = 0;
  ReleaseOutcome dropped;
};

class RunImpl final : public Run {
 public:
  RunImpl(std::shared_ptr<const Servers> servers, std::string name, const OpenedRun& opened)
      : servers_(std::move(servers)),
        name_(std::move(name)),
        geometry_(std::make_shared<const Geometry>(opened.geometry)),
        settings_(opened.settings),
        dropped_(opened.dropped),
        blocks_{opened.settings.block_rows, opened.settings.codec.value_or(geometry_->default_codec()),
                opened.max_message_bytes, opened.max_payload_bytes} {}

  const std::string& name() const override { return name_; }
  const Geometry& geometry() const override { return *geometry_; }
  const RunSettings& settings() const override { return settings_; }
  const ReleaseOutcome& dropped() const override { return dropped_; }
  int64_t Handle(absl::string_view sample) const override { return servers_->HandleOf(sample); }
  std::string place() const override { return servers_->tag_here(); }
  std::vector<std::string> places() const override { return servers_->tags(); }

  std::unique_ptr<Appender> NewAppender(AppenderOptions options) override {
    if (servers_->members() == nullptr) return MakeAppender(RunAt(0), std::move(options));
    std::vector<AppenderRun> runs;
    for (size_t place = 0; place < servers_->size(); ++place) runs.push_back(RunAt(place));
    return MakeShardedAppender(servers_, std::move(runs), std::move(options));
  }

  absl::StatusOr<AppendOutcome> Put(const AppendOptions& options, const TensorDescription& tensor,
                                    absl::Span<const uint8_t> payload) override {
    return PutPlan(PlanRows(options, tensor, payload, *geometry_, blocks_), options);
  }
  absl::StatusOr<AppendOutcome> PutUnrecorded(const AppendOptions& options, int64_t rows) override {
    return PutPlan(PlanUnrecorded(options, rows), options);
  }

  absl::Status Read(ReadRequest request, ReadSink& sink, std::chrono::milliseconds timeout) override {
    request.run = name_;
    const Clock::Time deadline = DeadlineAfter(Clock::Real().Now(), timeout);
    if (servers_->members() != nullptr) return ReadSharded(*servers_, *geometry_, request, sink, deadline);
    return ReadInto(*servers_->at(0).link(), *geometry_, request, sink, deadline);
  }

  absl::StatusOr<SampleState> Truncate(absl::string_view sample, Producer producer, int64_t rows,
                                       std::optional<int64_t> expected_revision) override {
    v1::TruncateRequest request;
    request.set_run(name_);
    request.set_sample(std::string(sample));
    request.set_producer(ToProto(producer));
    request.set_rows(rows);
    if (expected_revision) request.set_expected_revision(*expected_revision);
    const size_t place = servers_->PlaceOf(sample);
    // The call must not be repeated, because each call begins a new revision of the sample.
    const auto answer = servers_->at(place).Call(&Stub::Truncate, request, Repeat::kNever);
    if (!answer.ok()) return servers_->Named(place, answer.status());
    auto state = FromProto(*answer);
    if (state.ok()) state->handle = Handle(sample);
    return state;
  }

  absl::StatusOr<std::vector<SampleState>> StatMany(absl::Span<const std::string> samples, Producer producer) override {
    // Sorts the names by the server that has the sample, without duplicates: a server answers only once for each name.
    std::map<size_t, std::vector<std::string>> asked;
    std::unordered_set<std::string> seen;
    for (const std::string& sample : samples) {
      if (seen.insert(sample).second) asked[servers_->PlaceOf(sample)].push_back(sample);
    }
    const std::vector<std::pair<size_t, std::vector<std::string>>> by_place(asked.begin(), asked.end());
    auto parts =
        FanOut(by_place.size(), [&](size_t i) { return StatAt(by_place[i].first, by_place[i].second, producer); });
    std::unordered_map<std::string, SampleState> found;
    for (auto& part : parts) {
      if (!part.ok()) return part.status();
      for (SampleState& state : *part) found.try_emplace(state.sample, std::move(state));
    }
    std::vector<SampleState> states;
    for (const std::string& sample : samples) {
      auto node = found.extract(sample);
      if (node.empty()) continue;
      states.push_back(std::move(node.mapped()));
      states.back().handle = Handle(sample);
    }
    return states;
  }

  absl::StatusOr<std::vector<SampleState>> List(std::optional<std::pair<int64_t, int64_t>> groups,
                                                Producer producer) override {
    v1::ListRequest request;
    request.set_run(name_);
    request.set_producer(ToProto(producer));
    if (groups) {
      request.mutable_groups()->set_begin(groups->first);
      request.mutable_groups()->set_end(groups->second);
    }
    RR_ASSIGN_OR_RETURN(auto parts,
                        servers_->OfAll(Needed::kAll, [&](size_t place) { return ListAt(place, request); }));
    std::vector<SampleState> all;
    for (std::vector<SampleState>& part : parts) std::move(part.begin(), part.end(), std::back_inserter(all));
    for (SampleState& state : all) state.handle = Handle(state.sample);
    std::sort(all.begin(), all.end(), [](const SampleState& a, const SampleState& b) { return a.sample < b.sample; });
    return all;
  }

  absl::StatusOr<ReleaseOutcome> Release(absl::Span<const std::string> samples,
                                         const ReleaseOptions& options) override {
    std::vector<std::vector<v1::ReleaseRequest>> requests(servers_->size());  // The requests to each server.
    const auto request_at = [&](size_t place) -> v1::ReleaseRequest& {
      std::vector<v1::ReleaseRequest>& made = requests[place];
      const bool is_full = made.empty() || static_cast<size_t>(made.back().samples_size() +
                                                               made.back().handles_size()) == kMaxNamesPerCall;
      return is_full ? made.emplace_back() : made.back();
    };
    for (const std::string& sample : samples) request_at(servers_->PlaceOf(sample)).add_samples(sample);
    for (const int64_t handle : options.handles) {
      if (handle == 0) continue;
      RR_ASSIGN_OR_RETURN(const auto found, servers_->FindHandle(handle));
      request_at(found.first).add_handles(found.second);
    }
    return Sum(servers_->OfAll(Needed::kThoseThatAnswer, [&](size_t place) -> absl::StatusOr<ReleaseOutcome> {
      std::vector<ReleaseOutcome> parts;
      for (const v1::ReleaseRequest& request : requests[place]) {
        RR_ASSIGN_OR_RETURN(const auto part, ReleaseAt(place, request, options));
        parts.push_back(part);
      }
      return Sum(parts);
    }));
  }

  absl::StatusOr<ReleaseOutcome> ReleaseGroups(int64_t begin, int64_t end, const ReleaseOptions& options) override {
    v1::ReleaseRequest request;
    request.mutable_groups()->set_begin(begin);
    request.mutable_groups()->set_end(end);
    return Sum(
        servers_->OfAll(Needed::kThoseThatAnswer, [&](size_t place) { return ReleaseAt(place, request, options); }));
  }

  absl::StatusOr<ReleaseOutcome> Drop() override {
    v1::DropRunRequest request;
    request.set_run(name_);
    return Sum(servers_->OfAll(Needed::kThoseWithTheRun, [&](size_t place) -> absl::StatusOr<ReleaseOutcome> {
      RR_ASSIGN_OR_RETURN(const auto response, servers_->at(place).Call(&Stub::DropRun, request, Repeat::kNever));
      return Released(response);
    }));
  }

 private:
  // Appends to different servers get different sequence numbers, so that a number is unique in a sharded appender: the
  // number modulo the number of servers is the server's place.
  AppenderRun RunAt(size_t place) const {
    const size_t step = servers_->size();
    return {.link = servers_->at(place).link(),
            .name = name_,
            .geometry = geometry_,
            .blocks = blocks_,
            .first_sequence = step + place,
            .sequence_step = step};
  }

  absl::StatusOr<AppendOutcome> PutPlan(const absl::StatusOr<AppendPlan>& plan, const AppendOptions& options) {
    if (!plan.ok()) return WithSample(plan.status(), options.sample);
    RR_RETURN_IF_ERROR(servers_->CheckFork(options.sample, options.prefix_sample));
    const size_t place = servers_->PlaceOf(options.sample);
    AppendOutcome outcome;
    for (const AppendPiece& piece : plan->pieces) {
      RR_ASSIGN_OR_RETURN(const auto request, MakePut(name_, piece));
      const auto answer = servers_->at(place).Call(&Stub::Put, request);
      const absl::Status status = answer.ok() ? AddPutAnswer(*answer, outcome) : answer.status();
      if (!status.ok()) return servers_->Named(place, status);
    }
    return outcome;
  }

  // StatMany on one server.
  absl::StatusOr<std::vector<SampleState>> StatAt(size_t place, absl::Span<const std::string> names,
                                                  Producer producer) const {
    std::vector<SampleState> all;
    size_t at_once = kMaxNamesPerCall;
    for (size_t at = 0; at < names.size();) {
      const auto some = names.subspan(at, at_once);
      const auto response = servers_->at(place).Call(&Stub::Stat, MakeStat(name_, producer, some));
      if (some.size() > 1 && IsTooLong(response.status())) {
        at_once = some.size() / 2;
        continue;
      }
      if (!response.ok()) return servers_->Named(place, response.status());
      RR_ASSIGN_OR_RETURN(auto states, States(response->found()));
      std::move(states.begin(), states.end(), std::back_inserter(all));
      at += some.size();
    }
    return all;
  }

  absl::StatusOr<std::vector<SampleState>> ListAt(size_t place, v1::ListRequest request) const {
    std::vector<SampleState> all;
    do {
      RR_ASSIGN_OR_RETURN(const auto page, servers_->at(place).Call(&Stub::List, request));
      RR_ASSIGN_OR_RETURN(auto states, States(page.samples()));
      std::move(states.begin(), states.end(), std::back_inserter(all));
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    return all;
  }

  absl::StatusOr<ReleaseOutcome> ReleaseAt(size_t place, v1::ReleaseRequest request,
                                           const ReleaseOptions& options) const {
    request.set_run(name_);
    if (options.producer) request.set_producer(ToProto(*options.producer));
    RR_ASSIGN_OR_RETURN(const auto response, servers_->at(place).Call(&Stub::Release, request));
    return Released(response);
  }

  const std::shared_ptr<const Servers> servers_;
  const std::string name_;
  const std::shared_ptr<const Geometry> geometry_;
  const RunSettings settings_;
  const ReleaseOutcome dropped_;
  const BlockOptions blocks_;
};

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
  return OpenedRun{.geometry = std::move(geometry),
                   .settings = settings,
                   .max_message_bytes = static_cast<int64_t>(response.max_message_bytes()),
                   .max_payload_bytes = static_cast<int64_t>(response.max_payload_bytes()),
                   .dropped = Released(response.dropped())};
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

  // Returns the given servers, or the members of the list that the given server advertises. Asks it only once.
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
    return std::make_shared<RunImpl>(servers, request.run(), whole);
  }

  const std::shared_ptr<const Servers> given_;
  const ClientOptions options_;
  mutable Mutex mutex_;
  std::shared_ptr<const Servers> all_ ABSL_GUARDED_BY(mutex_);  // What AllServers returns; null: not known yet.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(ClientOptions options) {
  RR_ASSIGN_OR_RETURN(auto endpoint, EndpointOrEnvironment(options.endpoint));
  options.endpoint = std::move(endpoint);
  RR_ASSIGN_OR_RETURN(auto servers, Servers::Connect(options));
  return std::make_unique<ClientImpl>(std::move(servers), std::move(options));
}

absl::StatusOr<std::vector<SampleRows>> Run::ReadRows(ReadRequest request, std::chrono::milliseconds timeout) {
  RR_ASSIGN_OR_RETURN(auto ordinals, LayerOrdinals(geometry(), request.layers));
  PlaneCollector rows(geometry(), request, std::move(ordinals));
  RR_RETURN_IF_ERROR(Read(request, rows, timeout));
  return rows.ToRows();
}

absl::StatusOr<SampleState> Run::Stat(absl::string_view sample, Producer producer) {
  const std::string name(sample);
  RR_ASSIGN_OR_RETURN(auto states, StatMany({&name, 1}, producer));
  if (!states.empty()) return states.front();
  return MakeError(absl::StatusCode::kNotFound, absl::StrCat("run ", this->name(), " has no sample ", name),
                   {.reason = Reason::kNoSample, .sample = name});
}

}  // namespace routing_replay
