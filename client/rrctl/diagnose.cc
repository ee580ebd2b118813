#include "client/rrctl/diagnose.h"

#include <algorithm>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/rrctl/file.h"
#include "client/rrctl/get.h"
#include "proto/json/rows_file.h"
#include "proto/wire/payload/narrow.h"
#include "proto/wire/payload/tensor_view.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/explain_json.h"

namespace routing_replay::client {
namespace {

using trainer::DescribedPlan;
using trainer::RouteIds;

absl::StatusOr<RouteIds> IdsOfFile(const std::string& path) {
  const auto bytes = ReadFile(path, std::cin);
  if (!bytes.ok()) return bytes.status();
  const auto rows = OpenRowsFile(*bytes);
  if (!rows.ok()) return rows.status();
  const auto view = OpenTensor(rows->tensor, rows->payload, static_cast<int64_t>(rows->payload.size()));
  if (!view.ok()) return view.status();
  RouteIds ids{view->rows, static_cast<int32_t>(view->layers), static_cast<int32_t>(view->top_k), {}};
  ids.ids.reserve(view->rows * view->row_elements());
  for (int64_t i = 0; i < view->rows * view->row_elements(); ++i) {
    ids.ids.push_back(static_cast<int32_t>(ElementAt(view->dtype, view->elements.data(), i)));
  }
  return ids;
}

// Recorded rows of a sample, all MoE layers; rows without a route, and slots beyond a layer's K, are -1.
RouteIds ToRouteIds(const Geometry& geometry, const SampleRows& sample) {
  const int32_t top_k = geometry.max_top_k();
  RouteIds ids{sample.rows.empty() ? 0 : sample.rows.back().end, geometry.num_moe_layers(), top_k, {}};
  ids.ids.assign(*geometry.array_ids(ids.rows), -1);
  int64_t slot = 0;
  for (const RowRange range : sample.rows) {
    for (int64_t row = range.begin; row < range.end; ++row, ++slot) {
      for (int32_t layer = 0; layer < ids.layers; ++layer) {
        const int32_t k = geometry.layer(layer).top_k;
        std::copy_n(sample.layers[layer].begin() + slot * k, k, ids.ids.begin() + (row * ids.layers + layer) * top_k);
      }
    }
  }
  return ids;
}

absl::StatusOr<std::vector<RouteIds>> RecordedIds(Client& client, const DiagnoseOptions& options,
                                                  const DescribedPlan& described) {
  const auto run = client.JoinRun(options.run);
  if (!run.ok()) return run.status();
  const Geometry& geometry = (*run)->geometry();
  if (!(geometry == described.geometry)) {
    return Invalid("geometry", absl::StrCat("is not that of run ", options.run, ", ", geometry.DebugString()));
  }
  std::vector<RouteIds> recorded;
  for (size_t i = 0; i < described.samples.size(); ++i) {
    const std::string& name = described.samples[i];
    if (name.empty()) return Invalid("micro_batch.sequences", absl::StrCat("sequence ", i, " names no sample"));
    const auto sample = ReadSample(**run, name, options.producer, options.timeout);
    if (!sample.ok()) return sample.status();
    recorded.push_back(ToRouteIds(geometry, *sample));
  }
  return recorded;
}

}  // namespace

absl::StatusOr<Document> DiagnoseReplayedIds(Client& client, const DiagnoseOptions& options,
                                             absl::string_view description) {
  const auto described = trainer::DescribedPlanFromJson(description);
  if (!described.ok()) return described.status();
  const auto seen = IdsOfFile(options.ids);
  if (!seen.ok()) return seen.status();
  const int32_t top_k = described->geometry.max_top_k();
  if (seen->top_k != top_k) {
    return Invalid("observed.ids", absl::StrCat("K is ", seen->top_k, ", that of the geometry is ", top_k));
  }
  const auto recorded = RecordedIds(client, options, *described);
  if (!recorded.ok()) return recorded.status();
  return trainer::DiagnoseIds(*described, *recorded, *seen);
}

}  // namespace routing_replay::client
