// Rows of an exported run.
#include "proto/json/json.h"
#include "trainer_plugin/capi/objects.h"

using namespace routing_replay;           // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;     // NOLINT(build/namespaces)
using namespace routing_replay::trainer;  // NOLINT(build/namespaces)

rrt_error* rrt_directory_source_open(const char* path, size_t size, rrt_directory_source** source) {
  return Guard([&]() -> absl::Status {
    auto opened = DirectorySource::Open(std::string(path, size));
    if (!opened.ok()) return opened.status();
    *source = new rrt_directory_source{*std::move(opened)};
    return absl::OkStatus();
  });
}

void rrt_directory_source_free(rrt_directory_source* source) { delete source; }

rrt_error* rrt_directory_source_json(const rrt_directory_source* source, rrt_bytes** out) {
  return Guard([&] {
    return Give(DumpJson({{"run", source->source->run()},
                          {"producer", ProducerName(source->source->producer())},
                          {"geometry", GeometryToJson(source->source->geometry())},
                          {"samples", source->source->samples()}}),
                out);
  });
}

rrt_error* rrt_directory_source_fetch(const rrt_directory_source* source, rrt_fetch* fetch) {
  return Guard([&]() -> absl::Status {
    auto staged =
        source->source->Fetch(fetch->plan.described.plan, fetch->slices, fetch->sequences, fetch->read_options);
    if (!staged.ok()) return staged.status();
    fetch->staged = *std::move(staged);
    fetch->ended = true;
    return absl::OkStatus();
  });
}

rrt_error* rrt_directory_source_inspect(const rrt_directory_source* source, rrt_inspect* inspect) {
  return Guard([&]() -> absl::Status {
    for (size_t i = 0; i < inspect->request.samples.size(); ++i) {
      SampleRecord record = source->source->Inspect(inspect->request.samples[i], inspect->request.producer);
      record.index = static_cast<int32_t>(i);
      if (absl::Status status = inspect->sink->OnRecord(record); !status.ok()) return status;
    }
    inspect->ended = true;
    return absl::OkStatus();
  });
}
