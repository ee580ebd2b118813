#include "client/run.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/appender/append_plan.h"
#include "client/appender/append_queue.h"
#include "client/appender/appender.h"
#include "client/reader/reader.h"
#include "proto/convert/convert.h"
#include "proto/transport/transport.h"
#include "proto/wire/message/append_message.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {

using routing_replay::FromProto;  // run.h has more of them.
using routing_replay::ToProto;

namespace {

// Adds what the answer to one of an append's Puts says.
absl::Status AddPutAnswer(const ByteChain& answer, AppendOutcome& outcome) {
  const auto ack = ParseAppendAck(answer);
  if (!ack.ok()) return absl::InternalError(absl::StrCat("unreadable ack: ", ack.status().message()));
  if (!ack->error.ok()) return ack->error;
  outcome.sample = ack->sample;
  AddAck(*ack, outcome);
  return absl::OkStatus();
}

using Stub = v1::RoutingReplay::Stub;

constexpr char kPutMethod[] = "/routing_replay.v1.RoutingReplay/Put";

absl::StatusOr<std::vector<SampleState>> States(const google::protobuf::RepeatedPtrField<v1::SampleState>& messages) {
  std::vector<SampleState> states;
  states.reserve(messages.size());
  for (const v1::SampleState& message : messages) {
    absl::StatusOr<SampleState> state = FromProto(message);
    if (!state.ok()) return state.status();
    states.push_back(*std::move(state));
  }
  return states;
}

absl::StatusOr<SampleState> State(const absl::StatusOr<v1::SampleState>& message) {
  if (!message.ok()) return message.status();
  return FromProto(*message);
}

v1::StatRequest MakeStat(const std::string& run, Producer producer, absl::Span<const std::string> samples) {
  v1::StatRequest request;
  request.set_run(run);
  request.set_producer(ToProto(producer));
  for (const std::string& sample : samples) request.add_samples(sample);
  return request;
}

ReleaseOutcome Outcome(const v1::ReleaseResponse& response) {
  return {static_cast<int64_t>(response.samples()), static_cast<int64_t>(response.bytes())};
}

grpc::ByteBuffer PutMessage(const std::string& run, const AppendPiece& piece) {
  ByteBufferBuilder builder;
  builder.Add(EncodeAppendRequest({.run = run, .append = piece.header}, piece.payload_bytes));
  for (const absl::Span<const uint8_t> part : piece.payload) builder.Add(part, piece.owner);
  return builder.Build();
}

// Whether anything is asked for: joining workers need not repeat what the run has by default.
bool AsksForSomething(const RunSettings& settings) {
  return settings.ttl.count() != 0 || settings.strict || settings.block_rows != 0 || settings.codec ||
         settings.durability;
}

class RunImpl final : public Run {
 public:
  RunImpl(std::shared_ptr<const Caller> caller, std::string name, const OpenedRun& opened)
      : caller_(std::move(caller)),
        name_(std::move(name)),
        geometry_(std::make_shared<const Geometry>(opened.geometry)),
        opened_(opened) {}

  const std::string& name() const override { return name_; }
  const Geometry& geometry() const override { return *geometry_; }
  const RunSettings& settings() const override { return opened_.settings; }
  const ReleaseOutcome& dropped() const override { return opened_.dropped; }

  std::unique_ptr<Appender> NewAppender(AppenderOptions options) override;
  absl::StatusOr<AppendOutcome> Put(const AppendOptions& options, const TensorDescription& tensor,
                                    absl::Span<const uint8_t> payload) override;
  absl::StatusOr<AppendOutcome> PutUnrecorded(const AppendOptions& options, int64_t rows) override;
  absl::Status Read(ReadRequest request, ReadSink& sink, std::chrono::milliseconds timeout) override;
  absl::StatusOr<std::vector<SampleRows>> ReadRows(ReadRequest request, std::chrono::milliseconds timeout) override;

  absl::StatusOr<SampleState> Seal(absl::string_view sample, Producer producer, int64_t num_tokens,
                                   int64_t revision) override;
  absl::StatusOr<SampleState> Truncate(absl::string_view sample, Producer producer, int64_t rows,
                                       std::optional<int64_t> expected_revision) override;
  absl::StatusOr<SampleState> Stat(absl::string_view sample, Producer producer) override;
  absl::StatusOr<std::vector<SampleState>> StatMany(absl::Span<const std::string> samples, Producer producer) override;
  absl::StatusOr<std::vector<SampleState>> List(std::optional<std::pair<int64_t, int64_t>> groups,
                                                Producer producer) override;
  absl::StatusOr<ReleaseOutcome> Release(absl::Span<const std::string> samples, const ReleaseOptions& options) override;
  absl::StatusOr<ReleaseOutcome> ReleaseGroups(int64_t begin, int64_t end, const ReleaseOptions& options) override;
  absl::StatusOr<ReleaseOutcome> Drop() override;

 private:
  absl::StatusOr<ReleaseOutcome> CallRelease(v1::ReleaseRequest request, const ReleaseOptions& options);
  absl::StatusOr<AppendOutcome> PutPlan(const absl::StatusOr<AppendPlan>& plan, const std::string& sample);

  const std::shared_ptr<const Caller> caller_;
  const std::string name_;
  const std::shared_ptr<const Geometry> geometry_;
  const OpenedRun opened_;
};

std::unique_ptr<Appender> RunImpl::NewAppender(AppenderOptions options) {
  const auto stat = [caller = caller_, run = name_](
                        grpc::ClientContext& context, Producer producer,
                        const std::vector<std::string>& samples) -> absl::StatusOr<std::vector<SampleState>> {
    const auto response = caller->CallOnce(context, &Stub::Stat, MakeStat(run, producer, samples));
    if (!response.ok()) return response.status();
    return States(response->found());
  };
  return MakeAppender({.link = caller_->link(),
                       .name = name_,
                       .geometry = geometry_,
                       .block_rows = opened_.settings.block_rows,
                       .codec = opened_.settings.codec.value_or(geometry_->default_codec()),
                       .max_message_bytes = opened_.limits.max_message_bytes,
                       .max_payload_bytes = opened_.limits.max_payload_bytes,
                       .first_sequence = opened_.first_sequence,
                       .sequence_step = opened_.sequence_step,
                       .stat = stat},
                      std::move(options));
}

absl::StatusOr<AppendOutcome> RunImpl::Put(const AppendOptions& options, const TensorDescription& tensor,
                                           absl::Span<const uint8_t> payload) {
  return PutPlan(PlanTensor(options, tensor, payload, opened_.limits), options.sample);
}

absl::StatusOr<AppendOutcome> RunImpl::PutUnrecorded(const AppendOptions& options, int64_t rows) {
  return PutPlan(PlanUnrecorded(options, rows), options.sample);
}

absl::StatusOr<AppendOutcome> RunImpl::PutPlan(const absl::StatusOr<AppendPlan>& plan, const std::string& sample) {
  if (!plan.ok()) return WithSample(plan.status(), sample);
  AppendOutcome outcome;
  for (const AppendPiece& piece : plan->pieces) {
    auto response = caller_->CallRaw(kPutMethod, [&] { return PutMessage(name_, piece); });
    if (!response.ok()) return response.status();
    const auto bytes = ReceivedBytes::From(*response);
    if (!bytes.ok()) return bytes.status();
    if (absl::Status status = AddPutAnswer(bytes->chain(), outcome); !status.ok()) return status;
  }
  return outcome;
}

absl::Status RunImpl::Read(ReadRequest request, ReadSink& sink, std::chrono::milliseconds timeout) {
  request.run = name_;
  const Clock::Time deadline = DeadlineAfter(Clock::Real().Now(), timeout);
  return ReadInto(*caller_->link(), *geometry_, request, sink, deadline);
}

absl::StatusOr<std::vector<SampleRows>> RunImpl::ReadRows(ReadRequest request, std::chrono::milliseconds timeout) {
  request.run = name_;
  const Clock::Time deadline = DeadlineAfter(Clock::Real().Now(), timeout);
  return ReadDecoded(*caller_->link(), *geometry_, request, deadline);
}

absl::StatusOr<SampleState> RunImpl::Seal(absl::string_view sample, Producer producer, int64_t num_tokens,
                                          int64_t revision) {
  v1::SealRequest request;
  request.set_run(name_);
  request.set_sample(std::string(sample));
  request.set_producer(ToProto(producer));
  request.set_num_tokens(num_tokens);
  request.set_revision(revision);
  return State(caller_->Call(&Stub::Seal, request));
}

absl::StatusOr<SampleState> RunImpl::Truncate(absl::string_view sample, Producer producer, int64_t rows,
                                              std::optional<int64_t> expected_revision) {
  v1::TruncateRequest request;
  request.set_run(name_);
  request.set_sample(std::string(sample));
  request.set_producer(ToProto(producer));
  request.set_rows(rows);
  if (expected_revision) request.set_expected_revision(*expected_revision);
  // Each one begins a new life of the sample.
  return State(caller_->Call(&Stub::Truncate, request, Repeat::kNever));
}

absl::StatusOr<SampleState> RunImpl::Stat(absl::string_view sample, Producer producer) {
  const std::string name(sample);
  auto states = StatMany({&name, 1}, producer);
  if (!states.ok()) return states.status();
  if (!states->empty()) return states->front();
  return MakeError(absl::StatusCode::kNotFound, absl::StrCat("run ", name_, " has no sample ", name),
                   {.reason = Reason::kNoSample, .sample = name});
}

// That fewer samples at a time can be asked for.
bool IsTooLong(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  return absl::IsResourceExhausted(status) && detail && detail->reason == Reason::kLength;
}

absl::StatusOr<std::vector<SampleState>> RunImpl::StatMany(absl::Span<const std::string> samples, Producer producer) {
  std::vector<std::string> names;  // Each once, as servers answer them.
  std::unordered_set<std::string> seen;
  for (const std::string& sample : samples) {
    if (seen.insert(sample).second) names.push_back(sample);
  }
  std::vector<SampleState> all;
  size_t at_once = kMaxNamesPerCall;
  for (size_t at = 0; at < names.size();) {
    const auto some = absl::MakeConstSpan(names).subspan(at, at_once);
    const auto response = caller_->Call(&Stub::Stat, MakeStat(name_, producer, some));
    if (some.size() > 1 && IsTooLong(response.status())) {
      at_once = some.size() / 2;
      continue;
    }
    if (!response.ok()) return response.status();
    auto states = States(response->found());
    if (!states.ok()) return states.status();
    std::move(states->begin(), states->end(), std::back_inserter(all));
    at += some.size();
  }
  return all;
}

absl::StatusOr<std::vector<SampleState>> RunImpl::List(std::optional<std::pair<int64_t, int64_t>> groups,
                                                       Producer producer) {
  v1::ListRequest request;
  request.set_run(name_);
  request.set_producer(ToProto(producer));
  if (groups) {
    request.mutable_groups()->set_begin(groups->first);
    request.mutable_groups()->set_end(groups->second);
  }
  std::vector<SampleState> all;
  do {
    const auto page = caller_->Call(&Stub::List, request);
    if (!page.ok()) return page.status();
    auto states = States(page->samples());
    if (!states.ok()) return states.status();
    std::move(states->begin(), states->end(), std::back_inserter(all));
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return all;
}

absl::StatusOr<ReleaseOutcome> RunImpl::CallRelease(v1::ReleaseRequest request, const ReleaseOptions& options) {
  request.set_run(name_);
  if (options.producer) request.set_producer(ToProto(*options.producer));
  const auto response = caller_->Call(&Stub::Release, request);
  if (!response.ok()) return response.status();
  return Outcome(*response);
}

absl::StatusOr<ReleaseOutcome> RunImpl::Release(absl::Span<const std::string> samples, const ReleaseOptions& options) {
  const size_t count = samples.size() + options.handles.size();
  ReleaseOutcome total;
  for (size_t at = 0; at < count;) {
    v1::ReleaseRequest request;
    for (const size_t end = std::min(count, at + kMaxNamesPerCall); at < end; ++at) {
      const int64_t handle = at < samples.size() ? 0 : options.handles[at - samples.size()];
      if (at < samples.size()) request.add_samples(samples[at]);
      if (handle != 0) request.add_handles(handle);
    }
    if (request.samples().empty() && request.handles().empty()) continue;
    const auto part = CallRelease(std::move(request), options);
    if (!part.ok()) return part.status();
    total.samples += part->samples;
    total.bytes += part->bytes;
  }
  return total;
}

absl::StatusOr<ReleaseOutcome> RunImpl::ReleaseGroups(int64_t begin, int64_t end, const ReleaseOptions& options) {
  v1::ReleaseRequest request;
  request.mutable_groups()->set_begin(begin);
  request.mutable_groups()->set_end(end);
  return CallRelease(std::move(request), options);
}

absl::StatusOr<ReleaseOutcome> RunImpl::Drop() {
  v1::DropRunRequest request;
  request.set_run(name_);
  const auto response = caller_->Call(&Stub::DropRun, request, Repeat::kNever);
  if (!response.ok()) return response.status();
  return ReleaseOutcome{static_cast<int64_t>(response->samples()), static_cast<int64_t>(response->bytes())};
}

}  // namespace

v1::RunOptions ToProto(const RunSettings& settings) {
  v1::RunOptions options;
  options.set_ttl_ms(settings.ttl.count());
  options.set_strict(settings.strict);
  options.set_block_rows(settings.block_rows);
  options.set_codec(ToProto(settings.codec));
  options.set_durability(ToProto(settings.durability));
  return options;
}

absl::StatusOr<RunSettings> FromProto(const v1::RunOptions& options) {
  const auto codec = FromProto(options.codec(), "options.codec");
  if (!codec.ok()) return codec.status();
  const auto block_rows = CountFromProto(options.block_rows(), kMaxBlockRows, "options.block_rows");
  if (!block_rows.ok()) return block_rows.status();
  const auto durability = FromProto(options.durability(), "options.durability");
  if (!durability.ok()) return durability.status();
  return RunSettings{.ttl = std::chrono::milliseconds(options.ttl_ms()),
                     .strict = options.strict(),
                     .block_rows = *block_rows == 0 ? kDefaultBlockRows : static_cast<int32_t>(*block_rows),
                     .codec = *codec,
                     .durability = *durability,
                     .shard_fingerprint = options.shard_fingerprint()};
}

absl::StatusOr<OpenedRun> CallOpenRun(const Caller& caller, v1::OpenRunRequest request) {
  // What was removed is told once.
  const Repeat repeat = request.has_resume_at() ? Repeat::kNever : Repeat::kAlways;
  const auto response = caller.Call(&Stub::OpenRun, request, repeat);
  if (!response.ok()) return response.status();
  auto geometry = FromProto(response->geometry());
  if (!geometry.ok()) return geometry.status();
  const auto settings = FromProto(response->options());
  if (!settings.ok()) return settings.status();
  return OpenedRun{
      *std::move(geometry),
      *settings,
      {static_cast<int64_t>(response->max_message_bytes()), static_cast<int64_t>(response->max_payload_bytes())},
      Outcome(response->dropped())};
}

std::shared_ptr<Run> MakeRun(std::shared_ptr<const Caller> caller, std::string name, const OpenedRun& opened) {
  return std::make_shared<RunImpl>(std::move(caller), std::move(name), opened);
}

absl::StatusOr<std::shared_ptr<Run>> OpenRunWith(std::shared_ptr<const Caller> caller, v1::OpenRunRequest request) {
  const auto opened = CallOpenRun(*caller, request);
  if (!opened.ok()) return opened.status();
  return MakeRun(std::move(caller), request.run(), *opened);
}

v1::OpenRunRequest MakeOpenRun(absl::string_view run, const Geometry& geometry, const RunSettings& settings,
                               std::optional<int64_t> resume_at) {
  v1::OpenRunRequest request = MakeJoinRun(run);
  *request.mutable_geometry() = ToProto(geometry);
  if (AsksForSomething(settings)) *request.mutable_options() = ToProto(settings);
  if (resume_at) request.set_resume_at(*resume_at);
  return request;
}

v1::OpenRunRequest MakeJoinRun(absl::string_view run) {
  v1::OpenRunRequest request;
  request.set_run(std::string(run));
  return request;
}

using routing_replay::FromProto;  // run.h has more of them.

namespace {

using Stub = v1::RoutingReplay::Stub;

absl::StatusOr<RunSummary> Summary(const v1::RunState& state) {
  auto geometry = FromProto(state.geometry());
  if (!geometry.ok()) return geometry.status();
  auto settings = FromProto(state.options());
  if (!settings.ok()) return settings.status();
  return RunSummary{.run = state.run(),
                    .geometry = *std::move(geometry),
                    .settings = *settings,
                    .samples = static_cast<int64_t>(state.samples()),
                    .sealed_samples = static_cast<int64_t>(state.sealed_samples()),
                    .committed_rows = static_cast<int64_t>(state.committed_rows()),
                    .stored_bytes = static_cast<int64_t>(state.stored_bytes())};
}

}  // namespace

absl::StatusOr<std::vector<RunSummary>> CallListRuns(const Caller& caller) {
  std::vector<RunSummary> runs;
  v1::ListRunsRequest request;
  do {
    const auto page = caller.Call(&Stub::ListRuns, request);
    if (!page.ok()) return page.status();
    for (const v1::RunState& state : page->runs()) {
      auto summary = Summary(state);
      if (!summary.ok()) return summary.status();
      runs.push_back(*std::move(summary));
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return runs;
}

absl::StatusOr<ServerSummary> CallServerInfo(const Caller& caller) {
  const auto info = caller.Call(&Stub::GetServerInfo, v1::GetServerInfoRequest());
  if (!info.ok()) return info.status();
  ServerSummary summary{.version = info->version(),
                        .store = info->store(),
                        .budget_bytes = static_cast<int64_t>(info->budget_bytes()),
                        .stored_bytes = static_cast<int64_t>(info->stored_bytes()),
                        .reserved_bytes = static_cast<int64_t>(info->reserved_bytes()),
                        .samples = static_cast<int64_t>(info->samples()),
                        .runs = static_cast<int64_t>(info->runs()),
                        .uptime = std::chrono::milliseconds(info->uptime_ms()),
                        .draining = info->draining(),
                        .spill_budget_bytes = static_cast<int64_t>(info->spill_budget_bytes()),
                        .spilled_bytes = static_cast<int64_t>(info->spilled_bytes())};
  for (const auto& [name, value] : info->counters()) {
    summary.counters.emplace_back(name, static_cast<int64_t>(value));
  }
  std::sort(summary.counters.begin(), summary.counters.end());
  return summary;
}

}  // namespace routing_replay::client
