// A trainer of its own making: no Megatron, no Python. One micro-batch on one rank of two pipeline stages and two
// context-parallel ranks: plan, fetch, realign, router replay forward and backward.
//
//   replay_host --local                     rows of its own making
//   replay_host ENDPOINT RUN SAMPLE…        samples of a run of a routing-replay-server
#include <algorithm>
#include <cmath>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "router.h"
#include "routing_replay/trainer/realign.h"
#include "rows.h"

using namespace routing_replay;
using namespace routing_replay::trainer;

namespace {

constexpr int32_t kPipelineSize = 2, kContextParallelSize = 2;

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

// Index buffer and row states of a rank: what its routers replay.
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
  const std::vector<LocalRow> row_map = ExpandRowMap(plan.row_map);
  const auto realign = PlanRealign(*layout, {.staging_bytes = static_cast<int64_t>(staged->staging.size()),
                                             .pieces = staged->pieces,
                                             .row_map = row_map,
                                             .unrecorded = staged->unrecorded});
  if (!realign.ok()) return realign.status();
  Batch batch{*layout, std::vector<uint8_t>(layout->bytes()), std::vector<RowState>(layout->rows())};
  const absl::Status realigned =
      Realign(*layout, *realign, staged->staging, absl::MakeSpan(batch.indices), absl::MakeSpan(batch.states));
  if (!realigned.ok()) return realigned;
  return batch;
}

// What the layers of a model would do.
absl::Status RunRouters(const ReplayPlan& plan, const Batch& batch) {
  for (int32_t slot = 0; slot < batch.layout.num_layers(); ++slot) {
    const LayerRouting& layer = plan.routing[slot];
    std::vector<float> logits(batch.states.size() * layer.num_experts);
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i * (slot + 1)));
    const std::vector<float> grad_probs(logits.rbegin(), logits.rend());
    const auto out = RunRouter({.config = {.num_experts = layer.num_experts, .top_k = layer.top_k},
                                .logits = logits,
                                .indices = batch.layout.slab(absl::MakeConstSpan(batch.indices), slot),
                                .states = batch.states,
                                .grad_probs = grad_probs});
    if (!out.ok()) return out.status();
    double sum = 0, gradient = 0;
    for (float prob : out->probs) sum += prob;
    for (float grad : out->grad_logits) gradient += std::abs(grad);
    std::cout << "layer " << layer.layer_id << ": " << out->counters.replayed_rows << " rows replayed, "
              << out->counters.live_rows << " live, " << out->counters.pad_rows << " pads; probabilities sum to "
              << std::lround(sum) << ", sizes of gradients to " << std::lround(gradient) << "\n";
  }
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
  return RunRouters(*plan, *batch);
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
