// What a source says of samples before their rows are fetched.
#include <utility>

#include "proto/json/json.h"
#include "trainer_plugin/capi/objects.h"

using namespace routing_replay;           // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;     // NOLINT(build/namespaces)
using namespace routing_replay::trainer;  // NOLINT(build/namespaces)

rrt_error* rrt_inspect_new(const char* text, size_t size, rrt_inspect** inspect) {
  return Guard([&]() -> absl::Status {
    FetchDescription said;
    if (absl::Status status = ReadFetchDescription(Text(text, size), said); !status.ok()) return status;
    if (!said.geometry) return Invalid(Reason::kField, "geometry", "is missing");
    auto made = std::make_unique<rrt_inspect>(*std::move(said.geometry));
    made->sequences = std::move(said.sequences);
    made->request = MakeInspectRequest(made->geometry, made->sequences, said.options);
    made->request.run = std::move(said.run);
    made->sink = std::make_unique<InspectSink>(made->sequences);
    *inspect = made.release();
    return absl::OkStatus();
  });
}

void rrt_inspect_free(rrt_inspect* inspect) { delete inspect; }

rrt_error* rrt_inspect_result(const rrt_inspect* inspect, rrt_bytes** out) {
  return Guard([&]() -> absl::Status {
    if (!inspect->ended) {
      return MakeError(absl::StatusCode::kFailedPrecondition, "inspect: it has not ended", {.field = "inspect"});
    }
    nlohmann::json samples = nlohmann::json::array();
    for (const SampleRecord& record : inspect->sink->records()) samples.push_back(ToJson(record));
    return Give(DumpJson(samples), out);
  });
}

rrt_error* rrt_local_source_inspect(const rrt_local_source* source, rrt_inspect* inspect) {
  return Guard([&]() -> absl::Status {
    for (size_t i = 0; i < inspect->request.samples.size(); ++i) {
      SampleRecord record = source->source.Inspect(inspect->request.samples[i]);
      record.index = static_cast<int32_t>(i);
      if (absl::Status status = inspect->sink->OnRecord(record); !status.ok()) return status;
    }
    inspect->ended = true;
    return absl::OkStatus();
  });
}
