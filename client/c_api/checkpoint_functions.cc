// Runs to directories and back.
#include <utility>

#include "client/c_api/calls.h"
#include "client/c_api/objects.h"
#include "client/c_api/values.h"
#include "client/call/cancellation.h"
#include "routing_replay/checkpoint.h"

using namespace routing_replay;         // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::c_api;  // NOLINT(build/namespaces)

namespace {

// An import's append that waits too long for room would fail it.
constexpr std::chrono::hours kImportQueueTimeout(24);

OnCheckpointProgress ProgressFrom(rr_progress progress, void* context) {
  if (progress == nullptr) return nullptr;
  return [=](const CheckpointProgress& now) {
    if (progress(context, now.samples, now.total, now.bytes) != 0) client::CallOfThread()->Cancel();
  };
}

void SetTimeout(int64_t timeout_ms, std::chrono::milliseconds& timeout) {
  if (timeout_ms >= 0) timeout = std::chrono::milliseconds(timeout_ms);
}

}  // namespace

rr_error* rr_run_export(rr_run* run, const rr_export_options* options, const rr_call* call, rr_exported* exported) {
  return Guard([&]() -> CallEnd {
    const auto producer = ProducerFrom(options->producer);
    if (!producer.ok()) return producer.status();
    ExportOptions asked{.groups = GroupsFrom(options->groups),
                        .producer = *producer,
                        .previous = String(options->previous),
                        .on_progress = ProgressFrom(options->progress, options->progress_context)};
    SetTimeout(options->read_timeout_ms, asked.read_timeout);
    const auto work = [run = run->run, directory = String(options->directory), asked = std::move(asked),
                       exported]() -> CallEnd {
      const auto outcome = ExportRun(*run->run, directory, asked);
      if (!outcome.ok()) return outcome.status();
      *exported = {outcome->samples, outcome->written, outcome->unsealed, outcome->bytes};
      return {};
    };
    return Perform(call, Once(work), Timeout::kOfWork);
  });
}

rr_error* rr_client_import(rr_client* client, const rr_import_options* options, const rr_call* call,
                           const rr_imported** imported) {
  return Guard([&]() -> CallEnd {
    ImportOptions asked{.groups = GroupsFrom(options->groups),
                        .run = String(options->run),
                        .appender = {.queue_timeout = kImportQueueTimeout},
                        .on_progress = ProgressFrom(options->progress, options->progress_context)};
    SetTimeout(options->read_timeout_ms, asked.read_timeout);
    const auto work = [client = client->client, directory = String(options->directory), asked = std::move(asked),
                       imported]() -> CallEnd {
      const auto connected = client->Get();
      if (!connected.ok()) return connected.status();
      const auto outcome = ImportRun(**connected, directory, asked);
      if (!outcome.ok()) return outcome.status();
      Result<rr_imported> result;
      *result = {result.Text(outcome->run), outcome->samples, outcome->appended, outcome->bytes};
      *imported = result.Release();
      return {};
    };
    return Perform(call, Once(work), Timeout::kOfWork);
  });
}
