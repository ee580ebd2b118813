// C functions for sources that need no service: host memory and exported runs.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/json/json.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/capi/objects.h"

using namespace routing_replay;           // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;     // NOLINT(build/namespaces)
using namespace routing_replay::trainer;  // NOLINT(build/namespaces)

struct rrt_source final : c_api::Object {
  explicit rrt_source(std::unique_ptr<LocalSource> made) : local(made.get()), source(std::move(made)) {}
  explicit rrt_source(std::unique_ptr<const DirectorySource> opened) : source(std::move(opened)) {}

  LocalSource* const local = nullptr;  // The source to which rows are added; null for a directory.
  const std::unique_ptr<const Source> source;
};

namespace {

absl::Status NotLocal() { return Invalid(Reason::kField, "source", "must be a local source, not a directory"); }

}  // namespace

rr_error* rrt_directory_source_open(rr_text path, rrt_source** source, const rr_bytes** described) {
  return Guard([&]() -> absl::Status {
    RR_ASSIGN_OR_RETURN(auto opened, DirectorySource::Open(c_api::String(path)));
    const DirectorySource& found = *opened;
    const rr_bytes* said = NewBytes(DumpJson({{"run", found.run()},
                                              {"producer", ProducerName(found.producer())},
                                              {"geometry", GeometryToJson(found.geometry())},
                                              {"samples", found.samples()}}));
    *source = new rrt_source(std::move(opened));
    *described = said;
    return absl::OkStatus();
  });
}

rr_error* rrt_local_source_new(rr_text text, rrt_source** source) {
  return Guard([&]() -> absl::Status {
    RR_ASSIGN_OR_RETURN(const auto value, ParseJson(View(text), "geometry"));
    RR_ASSIGN_OR_RETURN(const auto options, GeometryOptionsFromJson(value, "geometry"));
    RR_ASSIGN_OR_RETURN(auto geometry, Geometry::Create(options));
    *source = new rrt_source(std::make_unique<LocalSource>(std::move(geometry)));
    return absl::OkStatus();
  });
}

rr_error* rrt_local_source_add(rrt_source* source, rr_text sample, rr_integer num_tokens, rr_ranges unrecorded,
                               const rr_tensor* tensor, const uint32_t* tokens, size_t token_count) {
  return Guard([&]() -> absl::Status {
    if (source->local == nullptr) return NotLocal();
    const LocalSample said{.sample = c_api::String(sample),
                           .num_tokens = c_api::Optional(num_tokens),
                           .unrecorded = c_api::RangesFrom(unrecorded),
                           .token_ids = {tokens, token_count}};
    const auto description = c_api::TensorFrom(*tensor, "tensor");
    if (!description.ok()) return WithSample(description.status(), said.sample);
    return source->local->Add(said, *description, c_api::PayloadOf(*tensor));
  });
}

rr_error* rrt_local_source_record(rrt_source* source, const rrt_plan* plan, int32_t sequence, const uint32_t* tokens,
                                  size_t token_count, const void* indices, size_t indices_size) {
  return Guard([&]() -> absl::Status {
    if (source->local == nullptr) return NotLocal();
    const DescribedPlan& described = plan->described;
    if (sequence < 0 || sequence >= static_cast<int64_t>(described.sequences())) {
      return Invalid(Reason::kField, "sequence",
                     absl::StrCat("must be below ", described.sequences(), " and not negative, got ", sequence));
    }
    const LocalSample sample{.sample = described.sample(sequence),
                             .num_tokens = described.num_tokens(sequence),
                             .unrecorded = {},
                             .token_ids = {tokens, token_count}};
    return source->local->AddRecorded(sample, sequence, plan->layout, plan->row_map, Bytes(indices, indices_size));
  });
}

int32_t rrt_local_source_remove(rrt_source* source, rr_text sample) {
  return source->local != nullptr && source->local->Remove(View(sample)) ? 1 : 0;
}

rr_error* rrt_source_fetch(const rrt_source* source, rrt_fetch* fetch) {
  return Guard([&]() -> absl::Status {
    RR_ASSIGN_OR_RETURN(fetch->staged, source->source->Fetch(fetch->plan.described.plan, fetch->slices,
                                                             fetch->sequences, fetch->read_options));
    fetch->ended = true;
    return absl::OkStatus();
  });
}

rr_error* rrt_source_inspect(const rrt_source* source, const rrt_fetch_options* given, const rrt_records** records) {
  return Guard([&]() -> absl::Status {
    RR_ASSIGN_OR_RETURN(const auto options, OptionsFrom(*given));
    const std::vector<FetchSequence> sequences = SequencesFrom(*given);
    InspectSink sink(sequences);
    const ReadRequest request = MakeInspectRequest(source->source->geometry(), sequences, options);
    for (size_t i = 0; i < request.samples.size(); ++i) {
      SampleRecord record = source->source->Inspect(request.samples[i]);
      record.index = static_cast<int32_t>(i);
      RR_RETURN_IF_ERROR(sink.OnRecord(record));
    }
    *records = NewRecords(sink.records(), sequences);
    return absl::OkStatus();
  });
}
