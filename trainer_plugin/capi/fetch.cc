// Fetches from the service and from local rows, and realign.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/json/json.h"
#include "trainer_plugin/capi/objects.h"

using namespace routing_replay;           // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;     // NOLINT(build/namespaces)
using namespace routing_replay::trainer;  // NOLINT(build/namespaces)

namespace {

using nlohmann::json;

absl::Status ReadSequences(const json& list, std::vector<FetchSequence>& sequences) {
  if (!list.is_array()) return Invalid(Reason::kField, "sequences", "is not a list");
  sequences.clear();
  for (const json& item : list) {
    JsonObject object(item, absl::StrCat("sequences[", sequences.size(), "]"));
    FetchSequence& sequence = sequences.emplace_back();
    object.Read("handle", sequence.handle);
    if (object.Find("handle") == nullptr) object.Require("sample");
    object.Read("sample", sequence.sample);
    object.Read("num_tokens", sequence.num_tokens);
    object.Read("live", sequence.live);
    if (object.Find("content_id") != nullptr) object.Read("content_id", sequence.content_id.emplace());
    absl::Status status = ReadTokenChecks(object, "token_checks", sequence.token_checks);
    status.Update(object.status());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status NotEnded() {
  return MakeError(absl::StatusCode::kFailedPrecondition, "fetch: it has not ended", {.field = "fetch"});
}

// What a fetch that fell back under kDrop leaves out: [{"sequence", "sample"}, …], or "handle".
json DroppedJson(const rrt_fetch& fetch) {
  json dropped = json::array();
  for (const int32_t sequence : fetch.staged.dropped) {
    const FetchSequence& named = fetch.sequences[sequence];
    json& item = dropped.emplace_back(json{{"sequence", sequence}});
    if (named.sample.empty()) {
      item["handle"] = named.handle;
    } else {
      item["sample"] = named.sample;
    }
  }
  return dropped;
}

}  // namespace

namespace routing_replay::capi {

absl::StatusOr<Geometry> GeometryFrom(const json& value) {
  const auto options = GeometryOptionsFromJson(value, "geometry");
  if (!options.ok()) return options.status();
  return Geometry::Create(*options);
}

absl::Status ReadFetchDescription(absl::string_view text, FetchDescription& description) {
  const auto value = ParseJson(text, "fetch");
  if (!value.ok()) return value.status();
  JsonObject object(*value, "");
  object.Read("run", description.run);
  ReadProducer(object, description.options.producer);
  object.Read("missing", MissingPolicyNames(), description.options.missing);
  object.Read("wait", description.options.wait);
  const json* sequences = object.Find("sequences");
  const json* geometry = object.Find("geometry");
  if (absl::Status status = object.status(); !status.ok()) return status;
  if (geometry != nullptr) {
    auto said = GeometryFrom(*geometry);
    if (!said.ok()) return said.status();
    description.geometry = *std::move(said);
  }
  return sequences == nullptr ? absl::OkStatus() : ReadSequences(*sequences, description.sequences);
}

void StartReading(rrt_fetch& fetch, std::vector<int32_t> slices) {
  fetch.slices = std::move(slices);
  fetch.read_options = fetch.cached == nullptr ? fetch.options : fetch.cached->read_options();
  fetch.staged = {};
  fetch.ended = false;
  fetch.sink = std::make_unique<StagingSink>(fetch.plan.described.plan, fetch.slices, fetch.sequences,
                                             fetch.read_options, fetch.staged);
}

json ToJson(const SampleRecord& record) {
  json weights = json::array();
  for (const WeightSpan& span : record.weights) {
    weights.push_back({span.rows.begin, span.rows.end, span.version, span.label});
  }
  json out = {{"status", SampleStatusName(record.status)},     {"message", record.message},
              {"committed_rows", record.committed_rows},       {"revision", record.revision},
              {"unrecorded", RangesToJson(record.unrecorded)}, {"weights", std::move(weights)}};
  if (record.content_id != 0) out["content_id"] = record.content_id;
  if (record.num_tokens) out["num_tokens"] = *record.num_tokens;
  return out;
}

absl::StatusOr<RealignPlan> PlanRealignOf(const rrt_plan& plan, const rrt_fetch& fetch) {
  if (&fetch.plan != &plan) return Invalid(Reason::kField, "fetch", "is of another plan");
  if (!fetch.ended) return NotEnded();
  const StagedRows& staged = fetch.staged;
  const std::vector<LocalRow> row_map = ExpandRowMap(plan.described.plan.row_map);
  const std::vector<int64_t> last_rows = plan.described.last_rows();
  return PlanRealign(plan.layout, {.staging_bytes = static_cast<int64_t>(staged.staging.size()),
                                   .pieces = staged.pieces,
                                   .row_map = row_map,
                                   .unrecorded = staged.unrecorded,
                                   .last_rows = last_rows});
}

}  // namespace routing_replay::capi

rrt_error* rrt_fetch_new(const rrt_plan* plan, const char* text, size_t size, rrt_fetch** fetch) {
  return Guard([&]() -> absl::Status {
    const DescribedPlan& described = plan->described;
    FetchDescription said;
    for (size_t i = 0; i < described.sequences(); ++i) {
      said.sequences.push_back({.sample = described.sample(i), .num_tokens = described.num_tokens(i)});
    }
    absl::Status status = ReadFetchDescription(Text(text, size), said);
    if (status.ok()) {
      status = CheckFetch(said.geometry.value_or(described.geometry), described.plan, said.sequences);
    }
    if (!status.ok()) return status;
    auto made = std::make_unique<rrt_fetch>(*plan);
    made->sequences = std::move(said.sequences);
    made->options = said.options;
    made->run = std::move(said.run);
    StartReading(*made, SlicesToRead(described.plan, made->sequences));
    *fetch = made.release();
    return absl::OkStatus();
  });
}

void rrt_fetch_free(rrt_fetch* fetch) { delete fetch; }

rrt_error* rrt_fetch_give_up(rrt_fetch* fetch, const char* why, size_t size) {
  return Guard([&]() -> absl::Status {
    absl::Status status;
    if (!fetch->ended) {
      status = fetch->sink->GiveUp(Text(why, size));
      // Also where the policy refuses: others wait for what this fetch was to read.
      if (fetch->cached != nullptr) fetch->cached->Give(fetch->staged);
    }
    if (!status.ok()) return status;
    if (fetch->cached != nullptr) {
      auto staged = fetch->cached->Take(Text(why, size));
      if (!staged.ok()) return staged.status();
      fetch->staged = *std::move(staged);
    }
    fetch->ended = true;
    return absl::OkStatus();
  });
}

rrt_error* rrt_fetch_result(const rrt_fetch* fetch, rrt_bytes** out) {
  return Guard([&]() -> absl::Status {
    if (!fetch->ended) return NotEnded();
    json sequences = json::array();
    for (const SampleRecord& record : fetch->staged.records) {
      const int32_t sequence = fetch->plan.described.plan.slices[record.index].sequence;
      json said = ToJson(record);
      said["sequence"] = sequence;
      said["sample"] = fetch->sequences[sequence].sample;
      sequences.push_back(std::move(said));
    }
    return Give(DumpJson({{"fallback_sequences", fetch->staged.fallback_sequences},
                          {"staging_bytes", fetch->staged.staging.size()},
                          {"dropped", DroppedJson(*fetch)},
                          {"sequences", std::move(sequences)}}),
                out);
  });
}

rrt_error* rrt_local_source_new(const char* text, size_t size, rrt_local_source** source) {
  return Guard([&]() -> absl::Status {
    const auto value = ParseJson(Text(text, size), "geometry");
    if (!value.ok()) return value.status();
    auto geometry = GeometryFrom(*value);
    if (!geometry.ok()) return geometry.status();
    *source = new rrt_local_source{LocalSource(*std::move(geometry))};
    return absl::OkStatus();
  });
}

void rrt_local_source_free(rrt_local_source* source) { delete source; }

rrt_error* rrt_local_source_add(rrt_local_source* source, const char* sample, size_t sample_size, const char* tensor,
                                size_t tensor_size, const uint32_t* tokens, size_t token_count, const void* payload,
                                size_t payload_size) {
  return Guard([&]() -> absl::Status {
    const auto value = ParseJson(Text(sample, sample_size), "sample");
    if (!value.ok()) return value.status();
    LocalSample said{.token_ids = {tokens, token_count}};
    JsonObject object(*value, "");
    object.Require("sample");
    object.Read("sample", said.sample);
    object.Read("num_tokens", said.num_tokens);
    absl::Status status = ReadRanges(object, "unrecorded", said.unrecorded);
    status.Update(object.status());
    if (!status.ok()) return WithSample(status, said.sample);
    const auto description = TensorFromJson(Text(tensor, tensor_size), "tensor");
    if (!description.ok()) return WithSample(description.status(), said.sample);
    return source->source.Add(said, *description, Bytes(payload, payload_size));
  });
}

rrt_error* rrt_local_source_record(rrt_local_source* source, const rrt_plan* plan, int32_t sequence,
                                   const uint32_t* tokens, size_t token_count, const void* indices,
                                   size_t indices_size) {
  return Guard([&]() -> absl::Status {
    const DescribedPlan& described = plan->described;
    if (sequence < 0 || sequence >= static_cast<int64_t>(described.sequences())) {
      return Invalid(Reason::kField, "sequence",
                     absl::StrCat(sequence, " is none of ", described.sequences(), " sequences"));
    }
    const LocalSample sample{.sample = described.sample(sequence),
                             .num_tokens = described.num_tokens(sequence),
                             .unrecorded = {},
                             .token_ids = {tokens, token_count}};
    return source->source.AddRecorded(sample, sequence, plan->layout, ExpandRowMap(described.plan.row_map),
                                      Bytes(indices, indices_size));
  });
}

int32_t rrt_local_source_remove(rrt_local_source* source, const char* sample, size_t size) {
  return NoThrow([&] { return source->source.Remove(Text(sample, size)); }) ? 1 : 0;
}

rrt_error* rrt_local_source_fetch(const rrt_local_source* source, rrt_fetch* fetch) {
  return Guard([&]() -> absl::Status {
    auto staged =
        source->source.Fetch(fetch->plan.described.plan, fetch->slices, fetch->sequences, fetch->read_options);
    if (!staged.ok()) return staged.status();
    fetch->staged = *std::move(staged);
    fetch->ended = true;
    return absl::OkStatus();
  });
}

rrt_error* rrt_realign(const rrt_plan* plan, const rrt_fetch* fetch, void* indices, size_t indices_size,
                       uint8_t* states, size_t states_size, int64_t* rows) {
  return Guard([&]() -> absl::Status {
    const auto realign = PlanRealignOf(*plan, *fetch);
    if (!realign.ok()) return realign.status();
    absl::Status status =
        Realign(plan->layout, *realign, fetch->staged.staging, {static_cast<uint8_t*>(indices), indices_size},
                {reinterpret_cast<RowState*>(states), states_size});
    if (!status.ok() || rows == nullptr) return status;
    rows[0] = realign->replayed_rows;
    rows[1] = realign->unrecorded_rows;
    rows[2] = realign->pad_rows;
    return status;
  });
}
