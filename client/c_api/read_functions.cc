// C functions for reads, exports and imports.
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/c_api/calls.h"
#include "client/c_api/objects.h"
#include "client/c_api/values.h"
#include "client/reader/decoded_rows.h"
#include "client/reader/read_checker.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/checkpoint.h"
#include "routing_replay/wire/error_detail.h"

using namespace routing_replay;          // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::c_api;   // NOLINT(build/namespaces)
using namespace routing_replay::client;  // NOLINT(build/namespaces)

namespace {

// Timeout of a read if none is given.
constexpr std::chrono::seconds kReadTimeout(120);

SampleRead SampleFrom(const rr_sample_read& given) {
  SampleRead sample{.sample = String(given.sample),
                    .handle = given.handle,
                    .rows = RangesFrom(given.rows),
                    .num_tokens = Optional(given.num_tokens),
                    .min_weight_version = Optional(given.min_weight_version),
                    .max_weight_version = Optional(given.max_weight_version)};
  for (size_t i = 0; i < given.token_checks_count; ++i) {
    sample.token_checks.push_back({given.token_checks[i].rows, given.token_checks[i].crc32c});
  }
  return sample;
}

absl::StatusOr<ReadRequest> RequestFrom(const rr_read& read) {
  RR_ASSIGN_OR_RETURN(const auto producer, ProducerFrom(read.producer));
  if (read.layers != nullptr && read.layer_count == 0) {
    return Invalid("layers", "is empty; leave it out to read all MoE layers");
  }
  ReadRequest request{.producer = producer, .wait = read.wait != 0, .only_begun = read.only_begun != 0};
  if (read.layers != nullptr) request.layers = {read.layers, read.layers + read.layer_count};
  request.samples.reserve(read.count);
  for (size_t i = 0; i < read.count; ++i) request.samples.push_back(SampleFrom(read.samples[i]));
  return request;
}

rr_rows* NewRows(PlaneCollector& planes) {
  Result<rr_rows> rows;
  const std::vector<int32_t> layers = planes.LayerIds();
  const auto samples = rows.Array<rr_sample_rows>(planes.samples().size());
  for (size_t i = 0; i < samples.size(); ++i) {
    SamplePlanes& from = planes.samples()[i];
    rr_sample_rows& sample = samples[i];
    Fill(from.record, rows, sample);
    if (from.record.status != SampleStatus::kOk) continue;
    sample.rows = rows.Ranges(from.rows);
    sample.ids = from.ids.data();
    sample.ids_size = static_cast<size_t>(planes.BytesOf(TotalRows(from.rows)));
    rows.Keep(std::move(from.ids));
  }
  *rows = {.layers = rows.Copy(absl::MakeConstSpan(layers)),
           .layer_count = layers.size(),
           .top_k = static_cast<int32_t>(planes.top_k()),
           .id_bytes = planes.id_bytes(),
           .samples = samples.data(),
           .count = samples.size()};
  return rows.Release();
}

}  // namespace

rr_error* rr_run_read(rr_run* run, const rr_read* read, const rr_call* call, const rr_rows** rows) {
  return Guard([&]() -> CallEnd {
    RR_ASSIGN_OR_RETURN(auto request, RequestFrom(*read));
    const auto work = [run = run->shared->run, request = std::move(request), timeout = TimeoutOf(call, kReadTimeout),
                       rows]() -> CallEnd {
      const Geometry& geometry = run->geometry();
      RR_ASSIGN_OR_RETURN(auto ordinals, LayerOrdinals(geometry, request.layers));
      PlaneCollector planes(geometry, request, std::move(ordinals));
      RR_RETURN_IF_ERROR(run->Read(request, planes, timeout));
      *rows = NewRows(planes);
      return {};
    };
    return Perform(call, work, Timeout::kOfWork);
  });
}

rr_error* rr_run_export(rr_run* run, const rr_export_options* options, const rr_call* call, rr_exported* exported) {
  return Guard([&]() -> CallEnd {
    RR_ASSIGN_OR_RETURN(const auto producer, ProducerFrom(options->producer));
    ExportOptions asked{
        .groups = GroupsFrom(options->groups), .producer = producer, .previous = String(options->previous)};
    const auto work = [run = run->shared->run, directory = String(options->directory), asked = std::move(asked),
                       exported] {
      return Into(exported, ExportRun(*run, directory, asked), [](const ExportOutcome& outcome) {
        return rr_exported{outcome.samples, outcome.written, outcome.unsealed, outcome.bytes};
      });
    };
    return Perform(call, Once(work), Timeout::kOfWork);
  });
}

rr_error* rr_client_import(rr_client* client, const rr_import_options* options, const rr_call* call,
                           const rr_imported** imported) {
  return Guard([&]() -> CallEnd {
    ImportOptions asked{.groups = GroupsFrom(options->groups), .run = String(options->run)};
    const auto work = [client = client->shared, directory = String(options->directory), asked = std::move(asked),
                       imported] {
      return Into(imported, ImportRun(*client, directory, asked), [](const ImportOutcome& outcome) {
        Result<rr_imported> result;
        *result = {result.Text(outcome.run), outcome.samples, outcome.appended, outcome.bytes};
        return result.Release();
      });
    };
    return Perform(call, Once(work), Timeout::kOfWork);
  });
}
