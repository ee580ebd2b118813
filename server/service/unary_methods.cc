// The unary calls without payload. Requests and answers are generated protobuf messages. Memory beyond kFreeBytes is
// reserved before it is used.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/message/message_fields.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/v1/routing_replay.grpc.pb.h"
#include "routing_replay/wire/error_detail.h"
#include "server/operations/status.h"
#include "server/service/grpc_stream.h"
#include "server/store/store_rules.h"

namespace routing_replay::server {
namespace {

using std::chrono::milliseconds;

constexpr int kMaxNames = 16384;      // Limit of samples that one Stat or Release may name.
constexpr int kPageSamples = 1000;    // Most samples in an answer of List.
constexpr size_t kRunsAtATime = 256;  // Runs per request to the store.
// Limit of an answer with a list. Stock clients accept messages of 4 MiB.
constexpr size_t kAnswerBytes = 3 << 20;
// A call that needs at most this much memory reserves nothing, so that large requests do not block small ones.
constexpr int64_t kFreeBytes = 64 << 10;
// Memory that a sample's state takes while it becomes a protobuf message and then the bytes of an answer, as a multiple
// of its size in C++.
constexpr int64_t kStateCopies = 4;
// Memory of a run's protobuf message, as a multiple of its encoded size.
constexpr size_t kRunCopies = 6;
// Limit of an OpenRun request. A request with the most layers has a few thousand bytes. A longer one is not accepted,
// because parsing malicious nested messages could take thirty times their length in memory.
constexpr int64_t kMaxOpenRunBytes = 64 << 10;

milliseconds ToMs(Clock::Duration duration) { return std::chrono::duration_cast<milliseconds>(duration); }

// The requested options, with zeros replaced by the defaults.
absl::StatusOr<RunOptions> ReadOptions(const v1::RunOptions& asked, const Geometry& geometry,
                                       milliseconds default_ttl) {
  MessageFields f;
  const std::optional<Codec> codec = f.ReadAnyCodec("options.codec", asked.codec());
  const std::optional<Durability> durability = f.ReadAnyDurability("options.durability", asked.durability());
  if (!f.status().ok()) return f.status();
  // A TTL far out of range would overflow a Clock::Duration. It becomes one just out of range, which the store rejects.
  const milliseconds ttl(std::clamp<int64_t>(asked.ttl_ms(), -1, ToMs(kMaxTtl).count() + 1));
  const auto rows = static_cast<int32_t>(std::min<uint32_t>(asked.block_rows(), INT32_MAX));
  return RunOptions{.ttl = asked.ttl_ms() == 0 ? default_ttl : ttl,
                    .strict = asked.strict(),
                    .block_rows = rows == 0 ? kDefaultBlockRows : rows,
                    .codec = codec.value_or(geometry.default_codec()),
                    .durability = durability};
}

void WriteOptions(const RunOptions& options, v1::RunOptions& out) {
  out.set_ttl_ms(ToMs(options.ttl).count());
  out.set_strict(options.strict);
  out.set_block_rows(options.block_rows);
  out.set_codec(ToProto(options.codec));
  out.set_durability(ToProto(options.durability));
  out.set_shard_fingerprint(options.shard_fingerprint);
}

// Extends the reservation `memory` to what a call that uses `bytes` bytes needs. The first kFreeBytes are free.
absl::Status Pay(ServiceContext& context, int64_t bytes, ByteReservation& memory) {
  const int64_t missing = bytes - kFreeBytes - memory.bytes();
  if (missing <= 0) return absl::OkStatus();
  auto more = context.control_memory.Reserve(missing);
  if (more.ok()) {
    memory.Merge(*std::move(more));
    return absl::OkStatus();
  }
  ErrorDetail detail = GetErrorDetail(more.status()).value_or(ErrorDetail{.reason = Reason::kOverBudget});
  detail.field = "control-memory";
  const int64_t limit = context.control_memory.limit(), free = limit - context.control_memory.used();
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("control-memory: the call needs at least ", bytes, " bytes of memory, but only ", free,
                                " of ", limit, " are free; ask for fewer samples at a time, or try again later"),
                   detail);
}

absl::Status TooLong(absl::string_view what, int64_t is, int64_t most) {
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat(what, " ", is, "; the limit is ", most, "; split the request"),
                   {.reason = Reason::kLength});
}

// The samples that the request names, without duplicates, in the order of the request. RESOURCE_EXHAUSTED (kLength) if
// there are too many.
template <typename Samples, typename Handles>
absl::StatusOr<std::vector<SampleRef>> ReadRefs(const Samples& samples, const Handles& handles) {
  const int64_t names = int64_t{samples.size()} + handles.size();
  if (names > kMaxNames) return TooLong("samples: the number of samples named is", names, kMaxNames);
  std::vector<SampleRef> refs;
  absl::flat_hash_set<absl::string_view> seen_samples;
  absl::flat_hash_set<int64_t> seen_handles;
  for (const std::string& sample : samples) {
    if (seen_samples.insert(sample).second) refs.push_back({sample, 0});
  }
  for (const int64_t handle : handles) {
    if (seen_handles.insert(handle).second) refs.push_back({"", handle});
  }
  return refs;
}

absl::StatusOr<GroupRange> ReadGroups(const v1::GroupRange& groups) {
  if (groups.begin() > groups.end()) return Invalid("groups", "begin must not be above end");
  return GroupRange{groups.begin(), groups.end()};
}

// The options that the request names; nothing if it names none. If it names only a fingerprint, the run's other options
// are added.
absl::StatusOr<std::optional<RunOptions>> OptionsFor(ServiceContext& context, const v1::OpenRunRequest& request,
                                                     const std::optional<Geometry>& geometry) {
  if (!request.has_options() && request.shard_fingerprint() == 0) return std::nullopt;
  auto existing = context.store.GetRun(request.run());
  if (!geometry && !existing.ok()) return existing.status();
  RunOptions options;
  if (existing.ok() && !request.has_options()) {
    options = existing->options;
  } else {
    RR_ASSIGN_OR_RETURN(auto read, ReadOptions(request.options(), geometry ? *geometry : *existing->geometry,
                                               context.config.default_ttl));
    options = read;
  }
  options.shard_fingerprint = request.shard_fingerprint();
  return options;
}

void WriteReleased(const ReleaseResult& released, v1::ReleaseResponse& response) {
  response.set_samples(released.samples);
  response.set_bytes(released.bytes);
}

// Logs the call if it succeeded, or if the server failed, because it may then have been executed in part. Only the
// journal logs rejected calls.
void Audit(const UnaryCaller& caller, const char* action, const std::string& run, const absl::Status& status,
           const LogFields& what) {
  if (status.ok() || IsServersFault(status)) caller.record.Audit(action, run, status, what);
}

// OpenRun has three uses with different scopes.
absl::Status AuthorizeOpenRun(ServiceContext& context, const Caller& call, const v1::OpenRunRequest& request) {
  absl::Status status = Authorize(context, call, request.has_geometry() ? Rpc::kMakeRun : Rpc::kJoinRun, request.run());
  if (status.ok() && request.has_resume_at()) status = Authorize(context, call, Rpc::kResumeAt, request.run());
  return status;
}

// How many existing runs the grant covers; stops counting at `enough`.
absl::StatusOr<size_t> CountRunsOf(Store& store, const TokenGrant& grant, size_t enough) {
  size_t count = 0;
  std::string token;
  do {
    RR_ASSIGN_OR_RETURN(const auto page, store.ListRuns(token, kRunsAtATime));
    count += std::count_if(page.runs.begin(), page.runs.end(),
                           [&](const RunState& run) { return grant.covers(run.info.run); });
    token = page.next_token;
  } while (!token.empty() && count < enough);
  return count;
}

absl::Status NoRoomForRun(const char* limit, absl::string_view what) {
  return MakeError(absl::StatusCode::kResourceExhausted, absl::StrCat(limit, ": ", what, " already; drop one"),
                   {.reason = Reason::kOverBudget, .field = limit});
}

// Checks the limits on the number of runs: an empty run never expires, and takes memory.
absl::Status CheckRoomForRun(ServiceContext& context, const UnaryCaller& caller, const std::string& run)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(context.making_run) {
  if (context.store.GetRun(run).ok()) return absl::OkStatus();
  RR_ASSIGN_OR_RETURN(const auto runs, context.store.CountRuns());
  if (runs >= context.config.max_runs) return NoRoomForRun("max-runs", absl::StrCat("there are ", runs, " runs"));
  RR_ASSIGN_OR_RETURN(const auto permissions, Identify(context, caller.caller));
  const TokenGrant* limited = permissions.LimitOnRuns(RuleOf(Rpc::kMakeRun).any_of, run);
  if (limited == nullptr) return absl::OkStatus();
  const auto enough = static_cast<size_t>(*limited->max_runs);
  RR_ASSIGN_OR_RETURN(const auto own, CountRunsOf(context.store, *limited, enough));
  if (own < enough) return absl::OkStatus();
  return NoRoomForRun("max_runs", absl::StrCat("the token covers ", own, " runs"));
}

// Opens the run, or creates it. One creation at a time: otherwise concurrent ones would all pass the limit check.
absl::StatusOr<RunInfo> MakeRun(ServiceContext& context, const UnaryCaller& caller, const std::string& run,
                                const Geometry& geometry, const std::optional<RunOptions>& options) {
  if (context.store.GetRun(run).ok()) return context.store.OpenRun(run, &geometry, options);
  MutexLock lock(context.making_run);
  RR_RETURN_IF_ERROR(CheckRoomForRun(context, caller, run));
  return context.store.OpenRun(run, &geometry, options);
}

absl::Status DoOpenRun(ServiceContext& context, const UnaryCaller& caller, const v1::OpenRunRequest& request,
                       v1::OpenRunResponse& response) {
  RR_RETURN_IF_ERROR(AuthorizeOpenRun(context, caller.caller, request));
  RR_RETURN_IF_ERROR(CheckId(request.run(), "run"));
  std::optional<Geometry> geometry;
  if (request.has_geometry()) {
    RR_ASSIGN_OR_RETURN(auto read, FromProto(request.geometry()));
    geometry = std::move(read);
  }
  RR_ASSIGN_OR_RETURN(auto options, OptionsFor(context, request, geometry));
  RR_ASSIGN_OR_RETURN(auto run, geometry ? MakeRun(context, caller, request.run(), *geometry, options)
                                         : context.store.OpenRun(request.run(), nullptr, options));
  if (run.created) Audit(caller, "make_run", request.run(), absl::OkStatus(), {});
  if (request.has_resume_at()) {
    const auto dropped = context.store.ReleaseGroups(request.run(), std::nullopt, {request.resume_at(), INT64_MAX});
    Audit(caller, "resume_at", request.run(), dropped.status(),
          {{"group", static_cast<int64_t>(request.resume_at())}, {"samples", dropped.ok() ? dropped->samples : 0}});
    if (!dropped.ok()) return dropped.status();
    context.metrics.ForgetVersions(request.run());
    WriteReleased(*dropped, *response.mutable_dropped());
  }
  *response.mutable_geometry() = ToProto(*run.geometry);
  WriteOptions(run.options, *response.mutable_options());
  response.set_max_message_bytes(context.config.max_message_bytes);
  response.set_max_payload_bytes(context.config.max_payload_bytes);
  return absl::OkStatus();
}

absl::Status DoSeal(ServiceContext& context, const UnaryCaller&, const v1::SealRequest& request,
                    v1::SampleState& response) {
  MessageFields f;
  const Producer producer = f.ReadProducer("producer", request.producer());
  const int64_t num_tokens = f.Count("num_tokens", request.num_tokens(), kMaxTokens, 1);
  const int64_t revision = f.Count("revision", request.revision());
  if (!f.status().ok()) return f.status();
  RR_ASSIGN_OR_RETURN(auto state, context.store.Seal(request.run(), producer, request.sample(), num_tokens, revision));
  response = ToProto(state);
  return absl::OkStatus();
}

absl::Status DoTruncate(ServiceContext& context, const UnaryCaller&, const v1::TruncateRequest& request,
                        v1::SampleState& response) {
  MessageFields f;
  const Producer producer = f.ReadProducer("producer", request.producer());
  const int64_t rows = f.Count("rows", request.rows(), kMaxRows);
  std::optional<int64_t> expected;
  if (request.has_expected_revision()) expected = f.Count("expected_revision", request.expected_revision());
  if (!f.status().ok()) return f.status();
  RR_ASSIGN_OR_RETURN(auto state, context.store.Truncate(request.run(), producer, request.sample(), rows, expected));
  response = ToProto(state);
  return absl::OkStatus();
}

// Builds an answer that lists the states of samples: reserves memory before it is used, and limits the answer's size.
class AnswerOfStates {
 public:
  AnswerOfStates(ServiceContext& context, ByteReservation& memory)
      : context_(context), memory_(memory), paid_(memory.bytes()) {}

  // Reserves memory for a state and converts it. The first state may be longer than the limit of an answer.
  // RESOURCE_EXHAUSTED: kLength if the answer becomes too long, kOverBudget if there is no memory for it.
  absl::StatusOr<v1::SampleState> Make(const SampleState& state) {
    paid_ += kStateCopies * StateBytes(state);
    RR_RETURN_IF_ERROR(Pay(context_, paid_, memory_));
    v1::SampleState made = ToProto(state);
    constexpr size_t kFieldBytes = 6;  // The field number and the length that precede a state in the answer.
    const size_t before = bytes_;
    bytes_ += made.ByteSizeLong() + kFieldBytes;
    if (before > 0 && bytes_ > kAnswerBytes) {
      return TooLong("samples: the bytes of the answer are", bytes_, kAnswerBytes);
    }
    return made;
  }

 private:
  ServiceContext& context_;
  ByteReservation& memory_;
  int64_t paid_;      // Memory that the call needs: what is reserved, and up to kFreeBytes more.
  size_t bytes_ = 0;  // Encoded size of the answer.
};

absl::Status DoStat(ServiceContext& context, const UnaryCaller& caller, const v1::StatRequest& request,
                    v1::StatResponse& response) {
  MessageFields f;
  const Producer producer = f.ReadProducer("producer", request.producer());
  if (!f.status().ok()) return f.status();
  if (auto run = context.store.GetRun(request.run()); !run.ok()) return run.status();
  RR_ASSIGN_OR_RETURN(const auto refs, ReadRefs(request.samples(), request.handles()));
  AnswerOfStates answer(context, caller.memory);
  const auto take = [&](const SampleRef&, const absl::StatusOr<SampleState>& state) -> absl::Status {
    if (state.ok()) {
      RR_ASSIGN_OR_RETURN(auto made, answer.Make(*state));
      *response.add_found() = std::move(made);
      return absl::OkStatus();
    }
    return absl::IsNotFound(state.status()) ? absl::OkStatus() : state.status();
  };
  return context.store.StatEach(request.run(), producer, refs, take);
}

absl::Status DoList(ServiceContext& context, const UnaryCaller& caller, const v1::ListRequest& request,
                    v1::ListResponse& response) {
  MessageFields f;
  const Producer producer = f.ReadProducer("producer", request.producer());
  if (!f.status().ok()) return f.status();
  std::optional<GroupRange> groups;
  if (request.has_groups()) {
    RR_ASSIGN_OR_RETURN(auto read, ReadGroups(request.groups()));
    groups = read;
  }
  AnswerOfStates answer(context, caller.memory);
  std::string token = request.page_token();
  // The page ends when the answer is full.
  do {
    const auto left = static_cast<size_t>(kPageSamples - response.samples_size());
    RR_ASSIGN_OR_RETURN(auto page, context.store.List(request.run(), producer, groups, left, token));
    for (const SampleState& state : page.samples) {
      auto made = answer.Make(state);
      if (!made.ok() && response.samples().empty()) return made.status();
      if (!made.ok()) {
        response.set_next_page_token(response.samples().rbegin()->sample());
        return absl::OkStatus();
      }
      *response.add_samples() = *std::move(made);
    }
    token = page.next_token;
  } while (!token.empty() && response.samples_size() < kPageSamples);
  response.set_next_page_token(token);
  return absl::OkStatus();
}

absl::Status DoRelease(ServiceContext& context, const UnaryCaller&, const v1::ReleaseRequest& request,
                       v1::ReleaseResponse& response) {
  MessageFields f;
  std::optional<Producer> producer;  // Unspecified: both producers.
  if (request.producer() != v1::PRODUCER_UNSPECIFIED) producer = f.ReadProducer("producer", request.producer());
  if (!f.status().ok()) return f.status();
  RR_ASSIGN_OR_RETURN(const auto refs, ReadRefs(request.samples(), request.handles()));
  if (request.has_groups() && !refs.empty()) {
    return Invalid("groups", "must not be given together with samples or handles");
  }
  RR_ASSIGN_OR_RETURN(const auto groups, ReadGroups(request.groups()));
  RR_ASSIGN_OR_RETURN(const auto result, request.has_groups()
                                             ? context.store.ReleaseGroups(request.run(), producer, groups)
                                             : context.store.Release(request.run(), producer, refs));
  WriteReleased(result, response);
  return absl::OkStatus();
}

v1::RunState ToProto(const RunState& state) {
  v1::RunState out;
  out.set_run(state.info.run);
  *out.mutable_geometry() = ToProto(*state.info.geometry);
  WriteOptions(state.info.options, *out.mutable_options());
  out.set_samples(state.samples);
  out.set_sealed_samples(state.sealed_samples);
  out.set_committed_rows(state.committed_rows);
  out.set_stored_bytes(state.stored_bytes);
  return out;
}

absl::Status DoListRuns(ServiceContext& context, const UnaryCaller& caller, const v1::ListRunsRequest& request,
                        v1::ListRunsResponse& response) {
  RR_ASSIGN_OR_RETURN(const auto permissions, AuthorizeAnywhere(context, caller.caller, Rpc::kListRuns));
  size_t bytes = 0;
  std::string token = request.page_token();
  do {
    RR_ASSIGN_OR_RETURN(const auto page, context.store.ListRuns(token, kRunsAtATime));
    for (const RunState& state : page.runs) {
      if (!permissions.Sees(state.info.run)) continue;
      v1::RunState run = ToProto(state);
      bytes += run.ByteSizeLong();
      const bool first = response.runs().empty();
      const absl::Status paid = Pay(context, static_cast<int64_t>(kRunCopies * bytes), caller.memory);
      if (first && !paid.ok()) return paid;
      if (!first && (bytes > kAnswerBytes || !paid.ok())) {
        response.set_next_page_token(response.runs(response.runs_size() - 1).run());
        return absl::OkStatus();
      }
      *response.add_runs() = std::move(run);
    }
    token = page.next_token;
  } while (!token.empty());
  return absl::OkStatus();
}

absl::Status DoDropRun(ServiceContext& context, const UnaryCaller&, const v1::DropRunRequest& request,
                       v1::DropRunResponse& response) {
  RR_ASSIGN_OR_RETURN(const auto result, context.store.DropRun(request.run()));
  context.metrics.ForgetVersions(request.run());
  response.set_samples(result.samples);
  response.set_bytes(result.bytes);
  return absl::OkStatus();
}

// Fills in the facts that only the store knows.
void DescribeStore(ServiceContext& context, v1::ServerInfo& info) {
  const Store::Totals totals = context.store.GetTotals();
  info.set_stored_bytes(totals.stored_bytes);
  const int64_t held = totals.stored_bytes + totals.run_bytes;
  info.set_reserved_bytes(std::max<int64_t>(0, context.budget.used() - held));
  info.set_samples(totals.samples);
  info.set_runs(totals.runs);
  if (!totals.spill) return;
  info.set_spill_budget_bytes(totals.spill->budget_bytes);
  info.set_spilled_bytes(totals.spill->disk_bytes);
  for (const auto& [name, value] : SpillCounters(*totals.spill)) (*info.mutable_counters())[name] = value;
}

absl::Status DoGetServerInfo(ServiceContext& context, const UnaryCaller& caller,
                             const v1::GetServerInfoRequest& request, v1::ServerInfo& response) {
  RR_ASSIGN_OR_RETURN(const auto permissions, AuthorizeAnywhere(context, caller.caller, Rpc::kGetServerInfo));
  if (!request.without_store()) DescribeStore(context, response);
  response.set_version(ROUTING_REPLAY_VERSION);
  response.set_store(context.store.name());
  response.set_budget_bytes(context.budget.limit());
  response.set_uptime_ms(ToMs(context.clock.Now() - context.started).count());
  response.set_draining(context.draining);
  for (const auto& [name, value] : context.metrics.Counters()) {
    (*response.mutable_counters())[name] = static_cast<int64_t>(value);
  }
  response.set_endpoint(context.config.advertise);
  return absl::OkStatus();
}

absl::Status DoOpenDirect(ServiceContext& context, const UnaryCaller& caller, const v1::OpenDirectRequest&,
                          v1::OpenDirectResponse& response) {
  RR_ASSIGN_OR_RETURN(const auto permissions, AuthorizeAnywhere(context, caller.caller, Rpc::kOpenDirect));
  if (context.direct.tickets == nullptr) return absl::OkStatus();
  // Without a token file all clients share the empty token.
  const absl::string_view token = context.config.token_file.empty() ? "" : TokenOf(caller.caller.authorization);
  const Tickets::Ticket ticket = context.direct.tickets->Issue(token);
  response.set_port(context.direct.port);
  response.set_unix_socket(context.direct.unix_socket);
  response.set_encrypted(context.direct.encrypted);
  for (const int port : context.direct.grpc_ports) response.add_grpc_ports(port);
  response.set_ticket(ticket.secret);
  response.set_ticket_ms(ToMs(ticket.expires - context.clock.Now()).count());
  return absl::OkStatus();
}

// Upper bound of a parsed request's memory: a name of a few bytes takes far more as an object. 0 if kFreeBytes suffice.
int64_t ParsedBytes(grpc::ByteBuffer& bytes) {
  constexpr int64_t kFieldBytes = 160, kLongest = 8;
  const auto length = static_cast<int64_t>(bytes.Length());
  if (length * kFieldBytes <= kFreeBytes) return 0;
  grpc::ProtoBufferReader reader(&bytes);
  google::protobuf::io::CodedInputStream in(&reader);
  int64_t fields = 0;
  for (uint32_t tag = in.ReadTag(); tag != 0; tag = in.ReadTag()) {
    if (!google::protobuf::internal::WireFormatLite::SkipField(&in, tag)) break;
    ++fields;
  }
  return fields * kFieldBytes + length * kLongest;
}

template <typename Message>
absl::StatusOr<Message> Parse(grpc::ByteBuffer& bytes) {
  Message message;
  const bool parsed = grpc::SerializationTraits<Message>::Deserialize(&bytes, &message).ok();
  bytes.Clear();
  if (!parsed) return Invalid(Reason::kEncoding, "request", "cannot be parsed as the request message of this call");
  return message;
}

// `answer`: absl::Status(ServiceContext&, const UnaryCaller&, const Request&, Response&).
template <typename Request, typename Response, typename Answer>
UnaryMethod Method(const char* name, Answer answer, int64_t max_bytes = kMaxControlBytes) {
  return {name,
          [answer](ServiceContext& context, const UnaryCaller& caller,
                   grpc::ByteBuffer& bytes) -> absl::StatusOr<grpc::ByteBuffer> {
            ByteReservation parsed;
            RR_RETURN_IF_ERROR(Pay(context, ParsedBytes(bytes), parsed));
            RR_ASSIGN_OR_RETURN(const Request request, Parse<Request>(bytes));
            Response response;
            RR_RETURN_IF_ERROR(answer(context, caller, request, response));
            grpc::ByteBuffer answered;
            bool own_buffer;
            grpc::SerializationTraits<Response>::Serialize(response, &answered, &own_buffer);
            return answered;
          },
          max_bytes};
}

// A method on one run that one CallRule allows. `answer`: as for Method. `action`: its name in the audit log, if any.
template <typename Request, typename Response>
UnaryMethod MethodOnRun(const char* name, Rpc rule,
                        absl::Status (*answer)(ServiceContext&, const UnaryCaller&, const Request&, Response&),
                        const char* action = nullptr) {
  return Method<Request, Response>(
      name, [=](ServiceContext& context, const UnaryCaller& caller, const Request& request, Response& response) {
        absl::Status status = Authorize(context, caller.caller, rule, request.run());
        if (!status.ok()) return status;
        status = answer(context, caller, request, response);
        if (action == nullptr) return status;
        LogFields what;
        if constexpr (std::is_same_v<Response, v1::ReleaseResponse> || std::is_same_v<Response, v1::DropRunResponse>) {
          what.emplace_back("samples", static_cast<int64_t>(response.samples()));
        }
        Audit(caller, action, request.run(), status, what);
        return status;
      });
}

}  // namespace

const std::vector<UnaryMethod>& ControlMethods() {
  static const auto& methods = *new std::vector<UnaryMethod>{
      Method<v1::OpenRunRequest, v1::OpenRunResponse>("OpenRun", DoOpenRun, kMaxOpenRunBytes),
      MethodOnRun("Seal", Rpc::kSeal, DoSeal),
      MethodOnRun("Truncate", Rpc::kTruncate, DoTruncate, "truncate"),
      MethodOnRun("Stat", Rpc::kStat, DoStat),
      MethodOnRun("List", Rpc::kList, DoList),
      Method<v1::ListRunsRequest, v1::ListRunsResponse>("ListRuns", DoListRuns),
      MethodOnRun("Release", Rpc::kRelease, DoRelease, "release"),
      MethodOnRun("DropRun", Rpc::kDropRun, DoDropRun, "drop_run"),
      Method<v1::GetServerInfoRequest, v1::ServerInfo>("GetServerInfo", DoGetServerInfo),
      Method<v1::OpenDirectRequest, v1::OpenDirectResponse>("OpenDirect", DoOpenDirect),
  };
  return methods;
}

}  // namespace routing_replay::server
