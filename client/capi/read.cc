// Reads.
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/capi/objects.h"
#include "proto/wire/message/read_message.h"

using namespace routing_replay;          // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;    // NOLINT(build/namespaces)
using namespace routing_replay::client;  // NOLINT(build/namespaces)

rr_error* rr_reader_new(const rr_run* run, const char* json, size_t size, rr_reader** reader) {
  return Guard([&]() -> absl::Status {
    auto request = ReadRequestFrom(Text(json, size));
    if (!request.ok()) return request.status();
    request->run = run->info.name;
    auto made = std::make_unique<rr_reader>(run->info.geometry, *std::move(request));
    auto ordinals = LayerOrdinals(made->geometry, made->request.layers);
    if (!ordinals.ok()) return ordinals.status();
    made->collector = std::make_unique<PlaneCollector>(made->geometry, made->request, *std::move(ordinals));
    auto read = ResumableRead::Create(made->geometry, made->request, *made->collector);
    if (!read.ok()) return read.status();
    made->read = *std::move(read);
    *reader = made.release();
    return absl::OkStatus();
  });
}

void rr_reader_free(rr_reader* reader) { delete reader; }

rr_error* rr_reader_request(const rr_reader* reader, rr_bytes** request) {
  return Guard([&] {
    const ReadRequest* part = reader->read->part();
    *request = nullptr;
    return part == nullptr ? absl::OkStatus() : Give(EncodeReadRequest(*part), request);
  });
}

rr_error* rr_reader_push(rr_reader* reader, const void* data, size_t size) {
  return Guard([&]() -> absl::Status {
    if (absl::Status status = CheckEnded(reader, false); !status.ok()) return status;
    return reader->read->OnBytes(ByteChain(Bytes(data, size)));
  });
}

rr_error* rr_reader_end(rr_reader* reader) {
  return Guard([&]() -> absl::Status {
    if (absl::Status status = CheckEnded(reader, false); !status.ok()) return status;
    if (absl::Status status = reader->read->OnEnd(); !status.ok()) return status;
    reader->ended = reader->read->part() == nullptr;
    return absl::OkStatus();
  });
}

rr_error* rr_reader_break(rr_reader* reader) {
  return Guard([&]() -> absl::Status {
    if (absl::Status status = CheckEnded(reader, false); !status.ok()) return status;
    reader->read->OnBreak();
    reader->ended = reader->read->part() == nullptr;
    return absl::OkStatus();
  });
}

rr_error* rr_reader_result(const rr_reader* reader, rr_bytes** json) {
  return Guard([&]() -> absl::Status {
    if (absl::Status status = CheckEnded(reader, true); !status.ok()) return status;
    nlohmann::json samples = nlohmann::json::array();
    for (const SamplePlanes& sample : reader->collector->samples()) samples.push_back(ToJson(sample));
    return Give(nlohmann::json{{"layers", reader->collector->LayerIds()},
                               {"top_k", reader->collector->top_k()},
                               {"id_bytes", reader->collector->id_bytes()},
                               {"samples", std::move(samples)}},
                json);
  });
}

rr_error* rr_reader_take_ids(rr_reader* reader, size_t index, rr_bytes** ids) {
  return Guard([&]() -> absl::Status {
    if (absl::Status status = CheckEnded(reader, true); !status.ok()) return status;
    std::vector<SamplePlanes>& samples = reader->collector->samples();
    if (index >= samples.size()) return absl::OutOfRangeError(absl::StrCat("no sample ", index));
    if (!reader->taken.insert(index).second) {
      return absl::FailedPreconditionError(absl::StrCat("the ids of sample ", index, " were taken already"));
    }
    *ids = new rr_bytes(std::move(samples[index].ids));
    return absl::OkStatus();
  });
}
