// A minimal trainer: no Megatron, no Python. One micro-batch on one rank of two pipeline stages and two
// context-parallel ranks: plan, fetch, realign, router replay forward and backward.
//
//   replay_host --local                     with rows that it makes itself
//   replay_host ENDPOINT RUN SAMPLE…        with samples of a run of a routing-replay-server (only if compiled with
//                                           WITH_SERVICE)
#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/trainer/realign.h"
#include "routing_replay/trainer/router.h"
#include "routing_replay/trainer/source.h"
#include "routing_replay/wire/geometry.h"
#ifdef WITH_SERVICE
#include "routing_replay/trainer/fetch.h"
#endif

using namespace routing_replay;
using namespace routing_replay::trainer;

namespace {

constexpr int32_t kPipelineSize = 2, kContextParallelSize = 2;

// Samples, and how to fetch their rows.
struct Rows {
  Geometry geometry;
  std::vector<FetchSequence> samples;  // All with num_tokens set.
  std::function<absl::StatusOr<StagedRows>(const ReplayPlan&, const std::vector<FetchSequence>&)> fetch;
};

absl::StatusOr<Rows> LocalRows() {
  constexpr int64_t kLayers = 8, kExperts = 64, kTopK = 4;
  Rows rows{.geometry = Geometry::Uniform(kLayers, kExperts, kTopK)};
  const auto source = std::make_shared<LocalSource>(rows.geometry);
  for (int64_t tokens : {37, 12, 5}) {
    const std::string sample = absl::StrCat("local/", rows.samples.size());
    std::vector<int32_t> ids;  // [rows][layers][K]
    for (int64_t i = 0; i < (tokens - 1) * kLayers; ++i) {
      for (int64_t k = 0; k < kTopK; ++k) ids.push_back(static_cast<int32_t>((i * 5 + k * 7) % kExperts));
    }
    const absl::Status added =
        source->Add({.sample = sample}, {.dtype = DType::kI32, .shape = {tokens - 1, kLayers, kTopK}},
                    {reinterpret_cast<const uint8_t*>(ids.data()), ids.size() * sizeof(int32_t)});
    if (!added.ok()) return added;
    rows.samples.push_back({.sample = sample, .num_tokens = tokens});
  }
  rows.fetch = [source](const ReplayPlan& plan, const std::vector<FetchSequence>& samples) {
    return source->Fetch(plan, samples, {});
  };
  return rows;
}

#ifdef WITH_SERVICE
// Samples of a run of a server.
absl::StatusOr<Rows> ServiceRows(const std::string& endpoint, const std::string& run,
                                 const std::vector<std::string>& samples) {
  ClientOptions options;
  options.endpoint = endpoint;
  auto connected = Client::Connect(options);
  if (!connected.ok()) return connected.status();
  auto joined = (*connected)->JoinRun(run);
  if (!joined.ok()) return joined.status();
  const std::shared_ptr<Run> reader = *joined;
  Rows rows{.geometry = reader->geometry()};
  for (const std::string& sample : samples) {
    const auto state = reader->Stat(sample);
    if (!state.ok()) return state.status();
    if (!state->sealed()) return absl::FailedPreconditionError(absl::StrCat(sample, " is not sealed"));
    rows.samples.push_back({.sample = sample, .num_tokens = state->num_tokens});
  }
  rows.fetch = [reader](const ReplayPlan& plan, const std::vector<FetchSequence>& fetched) {
    // This example needs every sample. A program that lets samples fall back would check
    // StagedRows::fallback_sequences.
    return FetchSlices(*reader, plan, fetched, {.missing = MissingPolicy::kStrict});
  };
  return rows;
}
#else
absl::StatusOr<Rows> ServiceRows(const std::string&, const std::string&, const std::vector<std::string>&) {
  return absl::UnimplementedError("built without routing_replay::trainer_fetch");
}
#endif

// The samples one after the other, each padded for the context-parallel ranks.
MicroBatchLayout Pack(const std::vector<FetchSequence>& samples) {
  MicroBatchLayout layout{.cu_seqlens_padded = {0}, .cp_size = kContextParallelSize};
  for (const FetchSequence& sample : samples) {
    const int64_t tokens = *sample.num_tokens, multiple = 2 * kContextParallelSize;
    layout.sequences.push_back({.tokens = tokens, .recorded_rows = tokens - 1});
    layout.total_rows += (tokens + multiple - 1) / multiple * multiple;
    layout.cu_seqlens_padded.push_back(layout.total_rows);
  }
  return layout;
}

// The index buffer and the row states of a rank, from which its routers replay.
struct Batch {
  BufferLayout layout;
  std::vector<uint8_t> indices;
  std::vector<RowState> states;
};

absl::StatusOr<Batch> Fetch(const Rows& rows, const ReplayPlan& plan) {
  const auto staged = rows.fetch(plan, rows.samples);
  if (!staged.ok()) return staged.status();
  BufferLayout::Options options{.rows = plan.row_map.rows};
  for (const OwnedLayer& layer : plan.layers) options.ordinals.push_back(layer.ordinal);
  const auto layout = BufferLayout::Create(rows.geometry, options);
  if (!layout.ok()) return layout.status();
  const ShownRows shown(ExpandRowMap(plan.row_map));
  const auto realign =
      PlanRealign(*layout, {.pieces = staged->pieces, .rows = shown, .unrecorded = staged->unrecorded});
  if (!realign.ok()) return realign.status();
  Batch batch{*layout, std::vector<uint8_t>(layout->bytes()), std::vector<RowState>(layout->rows())};
  const absl::Status realigned =
      Realign(*layout, *realign, staged->staging, absl::MakeSpan(batch.indices), absl::MakeSpan(batch.states));
  if (!realigned.ok()) return realigned;
  return batch;
}

// Does the work of a layer's router in a model, forward and backward. On a GPU, use LaunchRouterForward and
// LaunchRouterBackward of routing_replay/trainer/replay_cuda.h.
absl::Status RunRouter(const LayerRouting& layer, int32_t slot, const Batch& batch) {
  const RouterConfig config{.num_experts = layer.num_experts, .top_k = layer.top_k};
  const absl::Span<const uint8_t> indices = batch.layout.slab(absl::MakeConstSpan(batch.indices), slot);
  std::vector<float> logits(batch.states.size() * layer.num_experts);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i * (slot + 1)));
  const std::vector<float> grad_probs(logits.rbegin(), logits.rend());
  std::vector<float> probs(logits.size()), grad_logits(logits.size());
  std::vector<uint8_t> routing_map(logits.size()), chosen(indices.size());
  RouterCounters counters;
  absl::Status status = RouterReplayForward<float>(
      config, {.logits = logits, .indices = indices, .states = batch.states},
      {.probs = absl::MakeSpan(probs), .routing_map = absl::MakeSpan(routing_map), .chosen = absl::MakeSpan(chosen)},
      counters);
  status.Update(RouterReplayBackward<float>(config, {.logits = logits, .chosen = chosen, .grad_probs = grad_probs},
                                            absl::MakeSpan(grad_logits), counters));
  if (!status.ok()) return status;
  double sum = 0, gradient = 0;
  for (float prob : probs) sum += prob;
  for (float grad : grad_logits) gradient += std::abs(grad);
  std::cout << "layer " << layer.layer_id << ": " << counters.replayed_rows << " rows replayed, " << counters.live_rows
            << " live, " << counters.pad_rows << " pads; probabilities sum to " << std::lround(sum)
            << ", absolute gradients to " << std::lround(gradient) << "\n";
  return absl::OkStatus();
}

absl::Status RunHost(const absl::StatusOr<Rows>& rows) {
  if (!rows.ok()) return rows.status();
  const auto table = LayerTable::Create({.num_layers = rows->geometry.num_layers(), .pipeline_size = kPipelineSize});
  if (!table.ok()) return table.status();
  const auto plan = MakeReplayPlan(rows->geometry, *table, Pack(rows->samples), {.pp_rank = 1, .rows = {.cp_rank = 1}});
  if (!plan.ok()) return plan.status();
  const auto batch = Fetch(*rows, *plan);
  if (!batch.ok()) return batch.status();
  std::cout << plan->layers.size() << " layers, " << plan->rows_to_read << " rows, " << plan->bytes_to_read
            << " bytes read\n";
  for (int32_t slot = 0; slot < batch->layout.num_layers(); ++slot) {
    if (absl::Status status = RunRouter(plan->routing[slot], slot, *batch); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  absl::Status status = absl::InvalidArgumentError("usage: replay_host --local | ENDPOINT RUN SAMPLE…");
  if (arguments.size() == 1 && arguments[0] == "--local") {
    status = RunHost(LocalRows());
  } else if (arguments.size() > 2) {
    status = RunHost(ServiceRows(arguments[0], arguments[1], {arguments.begin() + 2, arguments.end()}));
  }
  if (status.ok()) return 0;
  std::cerr << status << "\n";
  return 1;
}
