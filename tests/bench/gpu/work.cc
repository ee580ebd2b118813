#include "tests/bench/gpu/work.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/realign.h"
#include "routing_replay/trainer/replay_cuda.h"
#include "routing_replay/trainer/router.h"
#include "tests/support/cuda/device_array.h"
#include "trainer_plugin/replay/compact_id.h"

namespace routing_replay::bench {
namespace {

using testing::DeviceArray;
using testing::DeviceCounters;
using trainer::BufferLayout;
using trainer::CudaStream;
using trainer::RowState;

constexpr int64_t kSectorBytes = 32;

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::exit(1);
}

std::vector<uint8_t> RandomIds(const trainer::RouterConfig& config, int64_t rows) {
  std::mt19937 random(1);
  std::vector<uint32_t> ids(config.num_experts);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<uint8_t> indices(rows * config.top_k * IdBytes(config));
  for (int64_t row = 0; row < rows; ++row) {
    for (int32_t k = 0; k < config.top_k; ++k) {
      std::swap(ids[k], ids[std::uniform_int_distribution<int>(k, config.num_experts - 1)(random)]);
      trainer::StoreId(indices.data(), IdBytes(config), row * config.top_k + k, ids[k]);
    }
  }
  return indices;
}

// The tensors of one router, as bytes because it may be fp32 or bf16. Bytes of 0x3C form numbers near 0.01.
struct Router {
  trainer::RouterConfig config;
  trainer::Dtype dtype;
  int64_t rows;
  DeviceArray<uint8_t> logits, grad_probs, probs, grad_logits, map, indices;
  DeviceArray<RowState> states;
  DeviceCounters<trainer::RouterCounters> counters;

  // One of every `live_every` rows has no stored route, so its experts are chosen live. With 0, every row has a route.
  Router(const trainer::RouterConfig& config, trainer::Dtype dtype, int64_t rows, int64_t live_every)
      : config(config),
        dtype(dtype),
        rows(rows),
        logits(static_cast<size_t>(rows * config.num_experts * element_bytes())),
        grad_probs(logits.size()),
        probs(logits.size()),
        grad_logits(logits.size()),
        map(static_cast<size_t>(rows * config.num_experts)),
        indices(RandomIds(config, rows)),
        states(States(rows, live_every)) {
    logits.Fill(0x3C), grad_probs.Fill(0x3C);
  }

  static std::vector<RowState> States(int64_t rows, int64_t live_every) {
    std::vector<RowState> states(rows, RowState::kReplayed);
    for (int64_t row = 0; live_every > 0 && row < rows; row += live_every) states[row] = RowState::kUnrecorded;
    return states;
  }
  int64_t element_bytes() const { return dtype == trainer::Dtype::kFloat32 ? 4 : 2; }
  // K separate elements of each row of a tensor.
  int64_t gathered_bytes() const {
    return rows * std::min(config.top_k * kSectorBytes, config.num_experts * element_bytes());
  }
  int64_t forward_bytes() const {
    return rows * config.num_experts * (element_bytes() + 1) + gathered_bytes() + static_cast<int64_t>(indices.size());
  }
  // The backward pass does not gather the K logits of a row again. It reads K fp32 values that the forward pass has
  // stored.
  int64_t backward_bytes() const {
    return rows * config.num_experts * element_bytes() + gathered_bytes() + static_cast<int64_t>(indices.size()) +
           rows * config.top_k * 4;
  }

  void Forward(CudaStream stream) const {
    Require(LaunchRouterForward(config,
                                {.dtype = dtype,
                                 .rows = rows,
                                 .logits = logits.data(),
                                 .indices = indices.data(),
                                 .states = states.data(),
                                 .probs = probs.data(),
                                 .routing_map = map.data(),
                                 .counters = counters.data()},
                                stream));
  }
  void Backward(CudaStream stream) const {
    Require(LaunchRouterBackward(config,
                                 {.dtype = dtype,
                                  .rows = rows,
                                  .logits = logits.data(),
                                  .chosen = indices.data(),
                                  .grad_probs = grad_probs.data(),
                                  .grad_logits = grad_logits.data(),
                                  .counters = counters.data()},
                                 stream));
  }
};

void AddRouter(const std::string& name, const trainer::RouterConfig& config, trainer::Dtype dtype, int64_t rows,
               std::vector<GpuWork>& work, int64_t live_every = 0) {
  const auto router = std::make_shared<Router>(config, dtype, rows, live_every);
  work.push_back({name + ".forward", router->forward_bytes(), [router](CudaStream s) { router->Forward(s); }});
  work.push_back({name + ".backward", router->backward_bytes(), [router](CudaStream s) { router->Backward(s); }});
  work.push_back({name + ".forward_backward", router->forward_bytes() + router->backward_bytes(),
                  [router](CudaStream s) { router->Forward(s), router->Backward(s); }});
}

// Four sequences of rows / 4 rows each, staged in pieces of 256 rows of all layers.
struct RealignBuffers {
  BufferLayout layout;
  trainer::PackedPlanSize size;
  int64_t staging_bytes = 0;
  DeviceArray<uint8_t> packed, staging, indices;
  DeviceArray<RowState> states;

  RealignBuffers(const Geometry& geometry, int64_t rows, Codec codec)
      : layout(*BufferLayout::Create(geometry, {.ordinals = AllOrdinals(geometry), .rows = rows})) {
    constexpr int64_t kPieceRows = 256;
    std::vector<trainer::StagedPiece> pieces;
    std::vector<trainer::LocalRow> row_map;
    for (int64_t local = 0; local < rows; ++local) {
      const auto sequence = static_cast<int32_t>(local * 4 / rows), row = static_cast<int32_t>(local % (rows / 4));
      row_map.push_back({sequence, row, RowState::kReplayed});
      if (row % kPieceRows != 0) continue;
      pieces.push_back({.sequence = sequence,
                        .layer_count = layout.num_layers(),
                        .rows = RowRange::OfSize(row, std::min(kPieceRows, rows / 4 - row)),
                        .codec = codec,
                        .offset = staging_bytes});
      for (int32_t ordinal = 0; ordinal < geometry.num_moe_layers(); ++ordinal) {
        staging_bytes += geometry.plane_bytes(ordinal, pieces.back().rows.size(), codec);
      }
    }
    const std::vector<std::vector<RowRange>> unrecorded(4);
    const trainer::ShownRows shown(row_map);
    const auto plan = PlanRealign(layout, {.pieces = pieces, .rows = shown, .unrecorded = unrecorded});
    Require(plan.status());
    size = SizeOfPackedPlan(layout, *plan);
    std::vector<uint8_t> bytes(size.bytes);
    Require(PackPlan(layout, *plan, absl::MakeSpan(bytes)));
    packed = DeviceArray<uint8_t>(bytes);
    staging = DeviceArray<uint8_t>(static_cast<size_t>(staging_bytes));
    staging.Fill(0x5A);
    indices = DeviceArray<uint8_t>(static_cast<size_t>(layout.bytes()));
    states = DeviceArray<RowState>(static_cast<size_t>(rows));
  }

  static std::vector<int32_t> AllOrdinals(const Geometry& geometry) {
    std::vector<int32_t> ordinals(geometry.num_moe_layers());
    std::iota(ordinals.begin(), ordinals.end(), 0);
    return ordinals;
  }

  void Launch(CudaStream stream) const {
    Require(trainer::LaunchRealign({.packed_plan = packed.data(),
                                    .staging = staging.data(),
                                    .indices = indices.data(),
                                    .states = states.data(),
                                    .units = size.units},
                                   stream));
  }
};

void AddRealign(const std::string& name, const Geometry& geometry, int64_t rows, Codec codec,
                std::vector<GpuWork>& work) {
  const auto buffers = std::make_shared<RealignBuffers>(geometry, rows, codec);
  work.push_back(
      {name, buffers->staging_bytes + buffers->layout.bytes() + rows, [buffers](CudaStream s) { buffers->Launch(s); }});
}

}  // namespace

std::vector<GpuWork> MakeGpuWork(int64_t rows) {
  std::vector<GpuWork> work;
  AddRealign("realign.raw8.l24", Geometry::Uniform(24, 128, 8), rows, Codec::kRaw, work);
  AddRealign("realign.packed7.l24", Geometry::Uniform(24, 128, 8), rows, Codec::kPacked, work);
  AddRealign("realign.raw16.l61", Geometry::Uniform(61, 384, 8), rows, Codec::kRaw, work);
  for (int32_t experts : {128, 256, 384}) {
    for (const auto& [dtype, dtype_name] :
         {std::pair(trainer::Dtype::kFloat32, "fp32"), std::pair(trainer::Dtype::kBfloat16, "bf16")}) {
      const std::string tail = absl::StrCat(".", dtype_name, ".e", experts);
      AddRouter("router.softmax" + tail, {.num_experts = experts, .top_k = 8}, dtype, rows, work);
      AddRouter("router.sigmoid" + tail,
                {.score_function = trainer::ScoreFunction::kSigmoid,
                 .num_experts = experts,
                 .top_k = 8,
                 .scaling_factor = 2.5},
                dtype, rows, work);
    }
  }
  // More cases: a tensor larger than the L2 cache, rows without a stored route, and a router of 512 experts whose
  // softmax comes before the choice.
  const trainer::RouterConfig softmax{.num_experts = 128, .top_k = 8};
  AddRouter("router.softmax.bf16.e128.hbm", softmax, trainer::Dtype::kBfloat16, rows * 16, work);
  AddRouter("router.softmax.bf16.e128.some-live", softmax, trainer::Dtype::kBfloat16, rows, work, 1024);
  AddRouter("router.softmax.bf16.e128.all-live", softmax, trainer::Dtype::kBfloat16, rows, work, 1);
  AddRouter("router.pre-softmax.bf16.e512.k10", {.pre_softmax = true, .num_experts = 512, .top_k = 10},
            trainer::Dtype::kBfloat16, rows, work);
  return work;
}

}  // namespace routing_replay::bench
