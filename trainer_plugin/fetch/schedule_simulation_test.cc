// A whole trainer on the CPU: tensor, context and pipeline parallelism of two each, two virtual stages, eight
// micro-batches of ragged documents, log-probabilities first and then training with full recompute. Every router of
// every rank gets the ids of just its rows, which say of which sample, row and layer they are.
#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "routing_replay/trainer/buffer_pool.h"
#include "routing_replay/trainer/local_source.h"
#include "routing_replay/trainer/replay_targets.h"
#include "tests/reference/schedule.h"
#include "tests/reference/token_layout_reference.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

constexpr int32_t kSteps = 50, kMicroBatches = 8, kStages = 2, kLayers = 8;
constexpr int32_t kCp = 2, kTp = 2, kPp = 2;
constexpr int64_t kMostTokens = 40, kMostSamples = 5, kMultiple = 2 * kCp * kTp;
constexpr int64_t kMostRows = kMostSamples * ((kMostTokens + kMultiple - 1) / kMultiple * kMultiple) / (kCp * kTp);

// Ids of a row: its sample in the step, its row, its layer. The last number is the row's again, in another place.
constexpr int32_t kTopK = 4, kExperts = 1024;
using Ids = std::array<uint16_t, kTopK>;
Ids IdsOf(int64_t sample, int64_t row, int32_t layer) {
  return {static_cast<uint16_t>(sample), static_cast<uint16_t>(100 + row), static_cast<uint16_t>(200 + layer),
          static_cast<uint16_t>(300 + row)};
}

// Layer 0 is dense, and the stages have 2, 2, 2 and 1 MoE layers.
const Geometry& Model() {
  static const Geometry geometry = *Geometry::Create(
      {.num_layers = kLayers, .moe_layer_ids = {1, 2, 3, 4, 5, 6, 7}, .num_experts = {kExperts}, .top_k = {kTopK}});
  return geometry;
}

// What one micro-batch holds: samples of one step by number.
struct MicroBatch {
  MicroBatchLayout layout;
  std::vector<int64_t> samples;
};

// The samples of a step, in micro-batches, and their rows.
class Step {
 public:
  Step(std::mt19937& random) : source_(Model()) {
    const auto pick = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    for (int32_t m = 0; m < kMicroBatches; ++m) {
      MicroBatch& batch = batches_.emplace_back();
      batch.layout = {.cu_seqlens_padded = {0}, .cp_size = kCp, .tp_size = kTp, .sequence_parallel = true};
      for (int64_t n = pick(1, kMostSamples); n > 0; --n) {
        const int64_t tokens = pick(1, kMostTokens);
        batch.layout.sequences.push_back({.tokens = tokens, .recorded_rows = tokens - 1});
        batch.layout.total_rows += (tokens + kMultiple - 1) / kMultiple * kMultiple;
        batch.layout.cu_seqlens_padded.push_back(batch.layout.total_rows);
        batch.samples.push_back(samples_++);
        Add(batch.samples.back(), tokens - 1);
      }
    }
  }

  const MicroBatch& batch(int32_t index) const { return batches_[index]; }
  const LocalSource& source() const { return source_; }

 private:
  void Add(int64_t sample, int64_t rows) {
    std::vector<uint16_t> ids;
    for (int64_t row = 0; row < rows; ++row) {
      for (const LayerRouting& layer : Model().layers()) {
        for (const uint16_t id : IdsOf(sample, row, layer.layer_id)) ids.push_back(id);
      }
    }
    const TensorDescription tensor{.dtype = DType::kU16, .shape = {rows, Model().num_moe_layers(), kTopK}};
    ASSERT_OK(source_.Add({.sample = std::to_string(sample)}, tensor,
                          {reinterpret_cast<const uint8_t*>(ids.data()), ids.size() * 2}));
  }

  LocalSource source_;
  std::vector<MicroBatch> batches_;
  int64_t samples_ = 0;
};

// One of the eight ranks: its buffers and its schedule.
class Rank {
 public:
  Rank(int32_t pp, int32_t cp, int32_t tp) : pp_(pp), cp_(cp), tp_(tp) {
    const LayerTable table =
        *LayerTable::Create({.num_layers = kLayers, .pipeline_size = kPp, .virtual_stages = kStages});
    for (int32_t v = 0; v < kStages; ++v) layers_.push_back(*OwnedMoeLayers(Model(), table, pp, v));
    const std::vector<int64_t> peaks = PeakInFlight(Order(false), kStages);
    std::vector<BufferLayout> layouts;
    for (int32_t v = 0; v < kStages; ++v) layouts.push_back(LayoutOf(v, kMostRows));
    std::vector<BufferNeed> needs;
    for (int32_t v = 0; v < kStages; ++v) needs.push_back({layouts[v], peaks[v]});
    pool_ = *BufferPool::Create(needs);
    memory_.resize(pool_->bytes().taken);
    for (int32_t v = 0; v < kStages; ++v) {
      for (int64_t i = 0; i < peaks[v]; ++i) free_[v].insert(pool_->offset(v, i));
    }
    idle_ = free_;
  }

  void Run(const Step& step, int64_t number, bool forward_only) {
    for (const Pass& pass : Order(forward_only)) {
      const PassKey key{.step = number, .micro_batch = pass.micro_batch, .chunk = pass.chunk};
      const MicroBatch& batch = step.batch(pass.micro_batch);
      switch (pass.kind) {
        case PassKind::kForward:
          ASSERT_NO_FATAL_FAILURE(Begin(step, key, forward_only));
          ASSERT_NO_FATAL_FAILURE(AskAll(batch, key, [&](const TargetKey& of) { return targets_.Forward(of); }));
          ASSERT_OK(targets_.EndForward(key));
          if (forward_only) Release(key);
          break;
        case PassKind::kRecompute:
          ASSERT_NO_FATAL_FAILURE(AskAll(batch, key, [&](const TargetKey& of) { return targets_.Recompute(of); }));
          break;
        case PassKind::kBackward:
          ASSERT_OK(targets_.Finish(key));
          Release(key);
          break;
      }
    }
    ASSERT_OK(targets_.EndStep(number));
    ASSERT_EQ(targets_.size(), 0);
    ASSERT_EQ(free_, idle_);
  }

  size_t memory() const { return memory_.capacity(); }
  int64_t replayed() const { return replayed_; }

 private:
  std::vector<Pass> Order(bool forward_only) const {
    return *PassOrder({.pipeline_size = kPp,
                       .pp_rank = pp_,
                       .virtual_stages = kStages,
                       .micro_batches = kMicroBatches,
                       .forward_only = forward_only,
                       .recompute = true});
  }

  BufferLayout LayoutOf(int32_t chunk, int64_t rows) const {
    std::vector<int32_t> ordinals;
    for (const OwnedLayer& layer : layers_[chunk]) ordinals.push_back(layer.ordinal);
    return *BufferLayout::Create(Model(), {.ordinals = ordinals, .rows = rows});
  }

  // Fetches and aligns into a free buffer of the chunk: the pool has as many as the schedule needs.
  void Begin(const Step& step, const PassKey& key, bool forward_only) {
    const MicroBatch& batch = step.batch(key.micro_batch);
    const auto plan =
        MakeReplayPlan(Model(), layers_[key.chunk], batch.layout, RowRank{.cp_rank = cp_, .tp_rank = tp_});
    ASSERT_OK(plan);
    std::vector<FetchSequence> sequences;
    for (const int64_t sample : batch.samples) sequences.push_back({.sample = std::to_string(sample)});
    ASSERT_OK_AND_ASSIGN(const StagedRows staged, step.source().Fetch(*plan, sequences, {}));
    const BufferLayout layout = LayoutOf(key.chunk, plan->row_map.rows);
    const std::vector<LocalRow> map = ExpandRowMap(plan->row_map);
    ASSERT_OK_AND_ASSIGN(const RealignPlan realign,
                         PlanRealign(layout, {.staging_bytes = static_cast<int64_t>(staged.staging.size()),
                                              .pieces = staged.pieces,
                                              .row_map = map,
                                              .unrecorded = staged.unrecorded}));
    ASSERT_FALSE(free_[key.chunk].empty());
    const int64_t buffer = *free_[key.chunk].begin();
    free_[key.chunk].erase(buffer);
    Held& held = held_.emplace(key, Held{layout, buffer, std::vector<RowState>(layout.rows())}).first->second;
    ASSERT_OK(Realign(layout, realign, staged.staging, absl::MakeSpan(memory_).subspan(buffer, layout.bytes()),
                      absl::MakeSpan(held.states)));
    std::vector<int32_t> ids;
    for (const OwnedLayer& layer : layers_[key.chunk]) ids.push_back(layer.layer_id);
    ASSERT_OK(targets_.Add(key, forward_only ? PassUse::kForwardOnly : PassUse::kTraining, ids, buffer));
  }

  // Each router of the chunk asks, and is given what the reference says of its rows.
  template <typename Ask>
  void AskAll(const MicroBatch& batch, const PassKey& key, Ask ask) {
    const std::vector<LocalRow> expected = reference::LocalRows(batch.layout, cp_, tp_);
    const Held& held = held_.at(key);
    ASSERT_EQ(held.states.size(), expected.size());
    for (const OwnedLayer& layer : layers_[key.chunk]) {
      ASSERT_OK_AND_ASSIGN(const Target target, ask(TargetKey{key, layer.layer_id}));
      const auto slab =
          held.layout.slab(absl::MakeConstSpan(memory_).subspan(target.buffer, held.layout.bytes()), target.slot);
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(held.states[i], expected[i].state) << ToString(key) << ", local row " << i;
        if (expected[i].state != RowState::kReplayed) continue;
        Ids ids;
        std::memcpy(ids.data(), slab.data() + i * sizeof ids, sizeof ids);
        ASSERT_EQ(ids, IdsOf(batch.samples[expected[i].sequence], expected[i].row, layer.layer_id))
            << ToString(key) << ", local row " << i;
        ++replayed_;
      }
    }
  }

  void Release(const PassKey& key) {
    free_[key.chunk].insert(held_.at(key).buffer);
    held_.erase(key);
  }

  struct Held {
    BufferLayout layout;
    int64_t buffer;
    std::vector<RowState> states;
  };

  const int32_t pp_, cp_, tp_;
  std::vector<std::vector<OwnedLayer>> layers_;  // Of each chunk.
  ReplayTargets targets_;
  std::optional<BufferPool> pool_;
  std::vector<uint8_t> memory_;
  std::array<std::set<int64_t>, kStages> free_, idle_;  // Offsets in memory_.
  std::map<PassKey, Held> held_;
  int64_t replayed_ = 0;
};

TEST(ScheduleSimulation, EveryRouterCallSeesItsRows) {
  std::mt19937 random(8);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int32_t pp = 0; pp < kPp; ++pp) {
    for (int32_t cp = 0; cp < kCp; ++cp) {
      for (int32_t tp = 0; tp < kTp; ++tp) ranks.push_back(std::make_unique<Rank>(pp, cp, tp));
    }
  }
  std::vector<size_t> memory;
  for (const auto& rank : ranks) memory.push_back(rank->memory());
  for (int32_t number = 0; number < kSteps; ++number) {
    const Step step(random);
    for (size_t i = 0; i < ranks.size(); ++i) {
      for (const bool forward_only : {true, false}) {
        ASSERT_NO_FATAL_FAILURE(ranks[i]->Run(step, 2 * number + !forward_only, forward_only))
            << "step " << number << ", rank " << i;
      }
      ASSERT_EQ(ranks[i]->memory(), memory[i]);
    }
  }
  for (const auto& rank : ranks) EXPECT_GT(rank->replayed(), 10000);
}

}  // namespace
}  // namespace routing_replay::trainer
