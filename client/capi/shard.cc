// Several servers as one.
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/capi/objects.h"
#include "client/channel/endpoint.h"
#include "proto/wire/message/read_message.h"
#include "routing_replay/wire/error_detail.h"

using namespace routing_replay;          // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;    // NOLINT(build/namespaces)
using namespace routing_replay::client;  // NOLINT(build/namespaces)

namespace {

absl::StatusOr<Producer> ProducerFrom(absl::string_view name) {
  for (const Producer producer : {Producer::kRollout, Producer::kTrainer}) {
    if (name == ProducerName(producer)) return producer;
  }
  return Invalid("producer", absl::StrCat("there is no producer \"", name, "\""));
}

AppendFacts FactsOf(const AppendHeader& header) {
  AppendFacts facts{
      .producer = header.producer,
      .sample = header.sample,
      .begins = header.rows.begin == 0 && !header.rows.empty() && header.revision == 0 && header.restart_nonce == 0};
  if (header.prefix) facts.prefix_sample = header.prefix->sample;
  return facts;
}

absl::StatusOr<std::vector<std::optional<std::vector<int64_t>>>> LocatedFrom(absl::string_view json) {
  const nlohmann::json parsed = nlohmann::json::parse(json.begin(), json.end(), nullptr, false);
  if (!parsed.is_array()) return Invalid("located", "is no list");
  std::vector<std::optional<std::vector<int64_t>>> located;
  for (const nlohmann::json& member : parsed) {
    std::optional<std::vector<int64_t>>& handles = located.emplace_back();
    if (member.is_null()) continue;
    if (!member.is_array()) return Invalid("located", "a member's is no list");
    handles.emplace();
    for (const nlohmann::json& handle : member) {
      if (!handle.is_number_integer()) return Invalid("located", "a handle is no integer");
      handles->push_back(handle.get<int64_t>());
    }
  }
  return located;
}

std::string Flat(const ReadResponse& message) {
  std::string bytes = EncodeReadResponse(message.records, message.pieces, message.payload.size());
  for (const absl::Span<const uint8_t> part : message.payload.spans()) bytes.append(part.begin(), part.end());
  return bytes;
}

absl::Status GiveQuestion(Producer producer, const std::vector<int64_t>& handles, rr_bytes** json) {
  return Give(nlohmann::json{{"producer", ProducerName(producer)}, {"handles", handles}}, json);
}

absl::Status GiveStep(ReadMerge::Step step, Producer producer, rr_merge_step* out) {
  if (!step.status.ok()) return step.status;
  *out = {.kind = static_cast<int32_t>(step.kind), .stream = step.stream, .member = step.member, .bytes = nullptr};
  switch (step.kind) {
    case ReadMerge::Kind::kStart:
      return Give(std::move(step.request), &out->bytes);
    case ReadMerge::Kind::kLocate:
      return GiveQuestion(producer, step.handles, &out->bytes);
    case ReadMerge::Kind::kDeliver:
      return Give(Flat(step.message), &out->bytes);
    default:
      return absl::OkStatus();
  }
}

}  // namespace

static_assert(static_cast<int32_t>(ReadMerge::Kind::kDone) == RR_MERGE_DONE);
static_assert(static_cast<int32_t>(ReadMerge::Kind::kDeliver) == RR_MERGE_DELIVER);

rr_error* rr_shard_new(const char* endpoint, size_t size, rr_shard** shard) {
  return Guard([&]() -> absl::Status {
    const auto given = EndpointOrEnvironment(Text(endpoint, size));
    if (!given.ok()) return given.status();
    *shard = nullptr;
    if (!ShardMembers::IsShardEndpoint(*given)) return absl::OkStatus();
    auto members = ShardMembers::Parse(*given);
    if (!members.ok()) return members.status();
    *shard = new rr_shard{*std::move(members)};
    return absl::OkStatus();
  });
}

void rr_shard_free(rr_shard* shard) { delete shard; }

rr_error* rr_shard_members(const rr_shard* shard, rr_bytes** json) {
  return Guard([&] {
    return Give(nlohmann::json{{"members", shard->members.endpoints()}, {"fingerprint", shard->members.fingerprint()}},
                json);
  });
}

rr_error* rr_shard_judge(const rr_shard* shard, const int32_t* kinds, size_t count, int32_t needed, int32_t* failed) {
  return Guard([&]() -> absl::Status {
    if (count != shard->members.size()) return Invalid("kinds", "is not one per member");
    std::vector<AnswerKind> answers;
    for (size_t i = 0; i < count; ++i) answers.push_back(static_cast<AnswerKind>(kinds[i]));
    const JointAnswer verdict = JudgeAnswers(answers, static_cast<Needed>(needed));
    *failed = verdict.failed ? static_cast<int32_t>(*verdict.failed) : -1;
    return verdict.lost ? LostRunError(shard->members.endpoints()[*verdict.failed]) : absl::OkStatus();
  });
}

rr_error* rr_shard_check_distinct(const rr_shard* shard, const uint64_t* lives, size_t count) {
  return Guard([&]() -> absl::Status {
    if (count != shard->members.size()) return Invalid("lives", "is not one per member");
    return CheckDistinct(shard->members.endpoints(), {lives, count});
  });
}

rr_error* rr_lives_new(size_t servers, rr_lives** lives) {
  return Guard([&] {
    *lives = new rr_lives(servers);
    return absl::OkStatus();
  });
}

void rr_lives_free(rr_lives* lives) { delete lives; }

rr_error* rr_lives_open(rr_lives* lives, size_t server, uint64_t life) {
  return Guard([&] {
    lives->lives.Open(server, life);
    return absl::OkStatus();
  });
}

rr_error* rr_lives_check(rr_lives* lives, size_t server, const char* run, size_t run_size, uint64_t life) {
  return Guard([&] { return lives->lives.Check(server, Text(run, run_size), life); });
}

uint64_t rr_lives_whole(const rr_lives* lives) { return lives->lives.whole(); }

rr_error* rr_places_new(const rr_shard* shard, rr_places** places) {
  return Guard([&] {
    *places = new rr_places(shard->members);
    return absl::OkStatus();
  });
}

void rr_places_free(rr_places* places) { delete places; }

rr_error* rr_places_find(rr_places* places, const char* producer, size_t producer_size, int64_t handle,
                         int32_t* member) {
  return Guard([&]() -> absl::Status {
    const auto which = ProducerFrom(Text(producer, producer_size));
    if (!which.ok()) return which.status();
    *member = static_cast<int32_t>(places->places.FindOrNatural(*which, handle));
    return absl::OkStatus();
  });
}

rr_error* rr_places_learn(rr_places* places, const char* producer, size_t producer_size, int64_t handle,
                          const int32_t* found, size_t count, int32_t* member) {
  return Guard([&]() -> absl::Status {
    const auto which = ProducerFrom(Text(producer, producer_size));
    if (!which.ok()) return which.status();
    if (count != places->places.members().size()) return Invalid("found", "is not one per member");
    std::vector<std::optional<bool>> has;
    for (size_t i = 0; i < count; ++i) has.push_back(found[i] < 0 ? std::nullopt : std::optional(found[i] > 0));
    const auto place = places->places.Learn(*which, handle, has);
    if (!place.ok()) return place.status();
    *member = *place ? static_cast<int32_t>(**place) : -1;
    return absl::OkStatus();
  });
}

rr_error* rr_places_route(rr_places* places, const rr_plan* plan, int32_t searched, int32_t* member,
                          rr_bytes** search) {
  return Guard([&]() -> absl::Status {
    if (plan->plan.pieces.empty()) return Invalid("plan", "an appender took it already");
    const AppendFacts facts = FactsOf(plan->plan.pieces.front().header);
    const AppendRoute route = places->places.Route(facts, searched != 0);
    *member = route.place ? static_cast<int32_t>(*route.place) : -1;
    *search = nullptr;
    if (route.place) return absl::OkStatus();
    return GiveQuestion(facts.producer, {route.search_for}, search);
  });
}

rr_error* rr_merge_new(const rr_run* run, rr_places* places, const void* request, size_t size, rr_merge** merge) {
  return Guard([&]() -> absl::Status {
    auto parsed = ParseReadRequest(ByteChain(Bytes(request, size)));
    if (!parsed.ok()) return parsed.status();
    const auto ordinals = LayerOrdinals(run->info.geometry, parsed->layers);
    if (!ordinals.ok()) return ordinals.status();
    *merge = new rr_merge(*std::move(parsed), ordinals->size(), places->places);
    return absl::OkStatus();
  });
}

void rr_merge_free(rr_merge* merge) { delete merge; }

rr_error* rr_merge_next(rr_merge* merge, rr_merge_step* step) {
  return Guard([&] { return GiveStep(merge->merge.Next(), merge->merge.producer(), step); });
}

rr_error* rr_merge_on_message(rr_merge* merge, size_t stream, const void* data, size_t size) {
  return Guard([&] {
    merge->merge.OnMessage(stream, ByteChain(Bytes(data, size)));
    return absl::OkStatus();
  });
}

rr_error* rr_merge_on_end(rr_merge* merge, size_t stream, const rr_error* error) {
  return Guard([&] {
    merge->merge.OnEnd(stream, error == nullptr ? absl::OkStatus() : error->status());
    return absl::OkStatus();
  });
}

rr_error* rr_merge_on_located(rr_merge* merge, const char* json, size_t size) {
  return Guard([&]() -> absl::Status {
    const auto located = LocatedFrom(Text(json, size));
    if (!located.ok()) return located.status();
    merge->merge.OnLocated(*located);
    return absl::OkStatus();
  });
}
