// Plans, Put and the appender.
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/appender/append_plan.h"
#include "client/capi/objects.h"
#include "proto/json/wire_json.h"
#include "proto/wire/message/append_message.h"
#include "routing_replay/wire/error_detail.h"

using namespace routing_replay;          // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;    // NOLINT(build/namespaces)
using namespace routing_replay::client;  // NOLINT(build/namespaces)

rr_message::rr_message(AppendQueue::Message content) : message(std::move(content)) {
  parts.push_back({message.header.data(), message.header.size()});
  for (const absl::Span<const uint8_t> part : message.payload) parts.push_back({part.data(), part.size()});
}

namespace {

// An append and its payload as they were given.
struct Given {
  AppendOptions options;
  TensorDescription tensor;
};

absl::StatusOr<Given> Read(absl::string_view append, absl::string_view tensor, absl::Span<const uint32_t> tokens) {
  auto options = AppendOptionsFrom(append);
  if (!options.ok()) return options.status();
  auto given = TakenTensorFromJson(tensor);
  if (!given.ok()) return WithSample(given.status(), options->sample);
  options->take = given->take;
  options->ids_and_weights = given->ids_and_weights;
  options->token_ids = tokens;
  return Given{*std::move(options), std::move(given->description)};
}

absl::Status GivePlan(absl::StatusOr<AppendPlan> plan, const std::string& sample, rr_plan** out) {
  if (!plan.ok()) return WithSample(plan.status(), sample);
  *out = new rr_plan{*std::move(plan)};
  return absl::OkStatus();
}

absl::Status Negative(const char* field) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat(field, ": is below 0"),
                   {.reason = Reason::kField, .field = field});
}

// What an appender took is gone from the plan.
absl::Status CheckUnused(const rr_plan* plan) {
  if (!plan->plan.pieces.empty()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, "plan: an appender took it already",
                   {.reason = Reason::kField, .field = "plan"});
}

absl::Status GivePut(const rr_run* run, const rr_plan* plan, size_t index, rr_message** message) {
  if (absl::Status status = CheckUnused(plan); !status.ok()) return status;
  if (index >= plan->plan.pieces.size()) return absl::InvalidArgumentError("index: the plan has no such piece");
  const AppendPiece& piece = plan->plan.pieces[index];
  *message =
      new rr_message({.header = EncodePut(run->info.name, piece), .payload = piece.payload, .owner = piece.owner});
  return absl::OkStatus();
}

Reason ReasonFromName(absl::string_view name) {
  for (auto number = static_cast<int32_t>(Reason::kField); number <= static_cast<int32_t>(Reason::kDraining);
       ++number) {
    if (name == ReasonName(static_cast<Reason>(number))) return static_cast<Reason>(number);
  }
  return Reason::kUnspecified;
}

absl::Status GiveAction(AppendSession::Action action, rr_action* out) {
  std::unique_ptr<rr_bytes> ask;
  std::unique_ptr<rr_message> message;
  if (action.step == AppendSession::Step::kAsk) {
    ask = std::make_unique<rr_bytes>(
        DumpJson({{"producer", ProducerName(action.producer)}, {"samples", action.samples}}));
  }
  if (action.step == AppendSession::Step::kSend) message = std::make_unique<rr_message>(std::move(action.message));
  const auto until = std::chrono::duration_cast<std::chrono::nanoseconds>(action.until.time_since_epoch());
  *out = {.step = static_cast<int32_t>(action.step),
          .until = until.count(),
          .message = message.release(),
          .ask = ask.release()};
  return absl::OkStatus();
}

static_assert(static_cast<int32_t>(AppendSession::Step::kWait) == RR_WAIT);
static_assert(static_cast<int32_t>(AppendSession::Step::kAsk) == RR_ASK);
static_assert(static_cast<int32_t>(AppendSession::Step::kConnect) == RR_CONNECT);
static_assert(static_cast<int32_t>(AppendSession::Step::kSend) == RR_SEND);
static_assert(static_cast<int32_t>(AppendSession::Step::kCancel) == RR_CANCEL);

}  // namespace

rr_error* rr_plan_rows(const rr_run* run, const char* append, size_t append_size, const char* tensor,
                       size_t tensor_size, const uint32_t* tokens, size_t token_count, const void* payload,
                       size_t payload_size, rr_plan** plan) {
  return Guard([&]() -> absl::Status {
    const auto given = Read(Text(append, append_size), Text(tensor, tensor_size), Tokens(tokens, token_count));
    if (!given.ok()) return given.status();
    return GivePlan(
        PlanRows(given->options, given->tensor, Bytes(payload, payload_size), run->info.geometry, run->info.blocks()),
        given->options.sample, plan);
  });
}

rr_error* rr_plan_tensor(const rr_run* run, const char* append, size_t append_size, const char* tensor,
                         size_t tensor_size, const uint32_t* tokens, size_t token_count, const void* payload,
                         size_t payload_size, rr_plan** plan) {
  return Guard([&]() -> absl::Status {
    const auto given = Read(Text(append, append_size), Text(tensor, tensor_size), Tokens(tokens, token_count));
    if (!given.ok()) return given.status();
    return GivePlan(PlanTensor(given->options, given->tensor, Bytes(payload, payload_size), run->info.limits),
                    given->options.sample, plan);
  });
}

rr_error* rr_plan_unrecorded(const char* append, size_t append_size, int64_t rows, const uint32_t* tokens,
                             size_t token_count, rr_plan** plan) {
  return Guard([&]() -> absl::Status {
    auto options = AppendOptionsFrom(Text(append, append_size));
    if (!options.ok()) return options.status();
    options->token_ids = Tokens(tokens, token_count);
    return GivePlan(PlanUnrecorded(*options, rows), options->sample, plan);
  });
}

int64_t rr_plan_bytes(const rr_plan* plan) { return plan->plan.bytes; }
void rr_plan_free(rr_plan* plan) { delete plan; }

size_t rr_plan_pieces(const rr_plan* plan) { return plan->plan.pieces.size(); }

rr_error* rr_put_message(const rr_run* run, const rr_plan* plan, rr_message** message) {
  return Guard([&]() -> absl::Status {
    if (plan->plan.pieces.size() > 1) return absl::InvalidArgumentError("an append of several pieces is not one Put");
    return GivePut(run, plan, 0, message);
  });
}

rr_error* rr_put_piece(const rr_run* run, const rr_plan* plan, size_t index, rr_message** message) {
  return Guard([&]() -> absl::Status { return GivePut(run, plan, index, message); });
}

rr_error* rr_put_outcomes(const rr_span* answers, size_t count, rr_bytes** outcome) {
  return Guard([&]() -> absl::Status {
    AppendOutcome all;
    for (size_t i = 0; i < count; ++i) {
      if (absl::Status status = AddPutAnswer(ByteChain(Bytes(answers[i].data, answers[i].size)), all); !status.ok()) {
        return status;
      }
    }
    return Give(ToJson(all), outcome);
  });
}
rr_error* rr_put_outcome(const void* answer, size_t size, rr_bytes** outcome) {
  return Guard([&]() -> absl::Status {
    const auto read = PutOutcome(ByteChain(Bytes(answer, size)));
    if (!read.ok()) return read.status();
    return Give(ToJson(*read), outcome);
  });
}

const rr_span* rr_message_parts(const rr_message* message, size_t* count) {
  *count = message->parts.size();
  return message->parts.data();
}

void rr_message_free(rr_message* message) { delete message; }

rr_error* rr_appender_new(const char* json, size_t size, rr_appender** appender) {
  return Guard([&]() -> absl::Status {
    const auto value = ParseJson(Text(json, size), "appender");
    if (!value.ok()) return value.status();
    AppendSession::Options options;
    int64_t append_timeout_ms = 0;
    JsonObject object(*value, "");
    for (const char* key : {"run", "max_queued_bytes", "append_timeout_ms"}) object.Require(key);
    object.Read("run", options.run);
    object.Read("max_queued_bytes", options.max_queued_bytes);
    object.Read("append_timeout_ms", append_timeout_ms);
    if (absl::Status status = object.status(); !status.ok()) return status;
    if (options.max_queued_bytes < 0) return Negative("max_queued_bytes");
    if (append_timeout_ms < 0) return Negative("append_timeout_ms");
    options.append_timeout = std::chrono::milliseconds(append_timeout_ms);
    *appender = new rr_appender(options);
    return absl::OkStatus();
  });
}

void rr_appender_free(rr_appender* appender) { delete appender; }

int32_t rr_appender_has_room(const rr_appender* appender, int64_t bytes) {
  return appender->session.HasRoom(bytes) ? 1 : 0;
}

rr_error* rr_appender_no_room(const rr_appender* appender, const char* sample, size_t size) {
  return Guard([&] { return appender->session.NoRoom(Text(sample, size)); });
}

rr_error* rr_appender_add(rr_appender* appender, rr_plan* plan, int64_t now, uint64_t* sequence) {
  return Guard([&]() -> absl::Status {
    if (absl::Status status = CheckUnused(plan); !status.ok()) return status;
    *sequence = appender->session.Add(std::exchange(plan->plan, {}), At(now));
    return absl::OkStatus();
  });
}

rr_error* rr_appender_add_dropped(rr_appender* appender, const rr_plan* plan, int64_t now, uint64_t* sequence) {
  return Guard([&]() -> absl::Status {
    if (absl::Status status = CheckUnused(plan); !status.ok()) return status;
    *sequence = appender->session.AddDropped(plan->plan, At(now));
    return absl::OkStatus();
  });
}

rr_error* rr_appender_add_failed(rr_appender* appender, rr_plan* plan, const rr_error* why, int64_t now,
                                 uint64_t* sequence) {
  return Guard([&]() -> absl::Status {
    if (absl::Status status = CheckUnused(plan); !status.ok()) return status;
    *sequence = appender->session.AddFailed(std::exchange(plan->plan, {}), why->status(), At(now));
    return absl::OkStatus();
  });
}

void rr_appender_count_refusal(rr_appender* appender, const char* reason, size_t size) {
  NoThrow([&] { appender->session.CountRefusal(ReasonFromName(Text(reason, size))); });
}

rr_error* rr_appender_next(rr_appender* appender, int64_t now, int32_t can_write, rr_action* action) {
  return Guard([&] { return GiveAction(appender->session.Next(At(now), can_write != 0), action); });
}

rr_error* rr_appender_on_states(rr_appender* appender, const char* json, size_t size, int64_t now) {
  return Guard([&] {
    const auto states = StatesFrom(Text(json, size));
    appender->session.OnStates(states, At(now));
    return states.status();
  });
}

void rr_appender_on_ask_error(rr_appender* appender, const rr_error* error, int64_t now) {
  NoThrow([&] { appender->session.OnStates(error->status(), At(now)); });
}

rr_error* rr_appender_on_message(rr_appender* appender, const void* data, size_t size, int64_t now) {
  return Guard([&] {
    appender->session.OnMessage(ByteChain(Bytes(data, size)), At(now));
    return absl::OkStatus();
  });
}

void rr_appender_on_stream_end(rr_appender* appender, const rr_error* why, int64_t now) {
  NoThrow([&] { appender->session.OnStreamEnd(why == nullptr ? absl::OkStatus() : why->status(), At(now)); });
}

rr_error* rr_appender_take_finished(rr_appender* appender, rr_bytes** json) {
  return Guard([&] {
    nlohmann::json list = nlohmann::json::array();
    for (AppendQueue::Finished& finished : appender->session.TakeFinished()) {
      nlohmann::json outcome = ToJson(finished.outcome);
      outcome["sequence"] = finished.sequence;
      list.push_back(std::move(outcome));
      appender->taken.push_back(std::move(finished));
    }
    return Give(list, json);
  });
}

int32_t rr_appender_has_finished(const rr_appender* appender) { return appender->session.HasFinished() ? 1 : 0; }

void rr_appender_delivered(rr_appender* appender) {
  NoThrow([&] {
    appender->session.OnDelivered(appender->taken);
    appender->taken.clear();
  });
}

uint64_t rr_appender_newest_open(const rr_appender* appender) { return appender->session.newest_open(); }

int32_t rr_appender_settled(const rr_appender* appender, uint64_t sequence) {
  return appender->session.Settled(sequence) ? 1 : 0;
}

rr_error* rr_appender_not_flushed(const rr_appender* appender) {
  return Guard([&] { return appender->session.NotFlushed(); });
}

rr_error* rr_appender_take_error(rr_appender* appender) {
  return Guard([&] { return appender->session.TakeError(); });
}

rr_error* rr_appender_metrics(const rr_appender* appender, rr_bytes** json) {
  return Guard([&] {
    nlohmann::json metrics = ToJson(appender->session.metrics());
    metrics["queued_bytes"] = appender->session.queued_bytes();
    metrics["open_appends"] = appender->session.open_count();
    return Give(metrics, json);
  });
}
