#include "proto/wire/block/bits.h"
#include "proto/wire/block/block.h"
#include "routing_replay/trainer/realign.h"
#include "tests/bench/wire/operation_support.h"

namespace routing_replay::bench {
namespace {

Operation Unpack(const WireSample& sample) {
  const auto run = [&sample](uint8_t* out) {
    const Geometry& geometry = sample.geometry();
    for (const BlockView& block : sample.packed().blocks) {
      const int64_t count = block.rows.size() * sample.layer().top_k;
      for (int32_t l = 0; l < geometry.num_moe_layers(); ++l) {
        UnpackIds(block.plane(geometry, l), 0, geometry.id_bits(l, Codec::kPacked), count, sample.layer().id_bytes(),
                  out);
        out += count * sample.layer().id_bytes();
      }
    }
  };
  return MakeOperation(sample, "unpack", sample.packed().bytes.span(), sample.raw().bytes.span(), run);
}

// Decodes cuts that start at row 1, whose first bit need not be the first of a byte.
Operation DecodeCuts(const WireSample& sample) {
  const auto run = [&sample](uint8_t* out) {
    const Geometry& geometry = sample.geometry();
    absl::Span<const uint8_t> rest = sample.cuts().bytes.span();
    for (const BlockView& block : sample.packed().blocks) {
      const int64_t rows = block.rows.size() - 1;
      const auto size = static_cast<size_t>(rows * sample.layer().top_k * sample.layer().id_bytes());
      for (int32_t l = 0; l < geometry.num_moe_layers(); ++l) {
        const int64_t cut = geometry.cut_bytes(l, 1, rows, Codec::kPacked);
        DecodeCut(geometry, l, Codec::kPacked, geometry.cut_bit_offset(l, 1, Codec::kPacked), rows, rest.first(cut),
                  {out, size});
        rest.remove_prefix(cut);
        out += size;
      }
    }
  };
  return MakeOperation(sample, "decode-packed", sample.cuts().bytes.span(), sample.cuts().ids.span(), run);
}

// From the pieces of a read to the index buffer, whose slabs hold all rows of a layer.
struct RealignTask {
  trainer::BufferLayout layout;
  trainer::RealignPlan plan;
  Buffer indices;
  std::vector<trainer::RowState> states;
};

absl::StatusOr<RealignTask> PlanAll(const WireSample& sample, const EncodedSample& encoded) {
  const Geometry& geometry = sample.geometry();
  trainer::BufferLayout::Options options{.rows = sample.rows()};
  for (int32_t l = 0; l < geometry.num_moe_layers(); ++l) options.ordinals.push_back(l);
  auto layout = trainer::BufferLayout::Create(geometry, options);
  if (!layout.ok()) return layout.status();
  std::vector<trainer::LocalRow> row_map;
  for (int32_t row = 0; row < sample.rows(); ++row) row_map.push_back({0, row, trainer::RowState::kReplayed});
  std::vector<trainer::StagedPiece> pieces;
  pieces.reserve(encoded.blocks.size());
  for (const BlockView& block : encoded.blocks) {
    pieces.push_back({.layer_count = geometry.num_moe_layers(),
                      .rows = block.rows,
                      .codec = block.codec,
                      .offset = block.bytes.data() - encoded.bytes.data()});
  }
  const std::vector<std::vector<RowRange>> unrecorded(1);
  const trainer::ShownRows shown(row_map);
  auto plan = trainer::PlanRealign(*layout, {.pieces = pieces, .rows = shown, .unrecorded = unrecorded});
  if (!plan.ok()) return plan.status();
  RealignTask task{*std::move(layout), *std::move(plan), {}, std::vector<trainer::RowState>(sample.rows())};
  task.indices = Buffer(task.layout.bytes());
  return task;
}

Operation Realign(const WireSample& sample, const std::string& name, const EncodedSample& encoded) {
  auto planned = PlanAll(sample, encoded);
  if (!planned.ok()) return MakeOperation(sample, name, encoded.bytes.span(), sample.layers(), [](uint8_t*) {});
  const auto task = std::make_shared<RealignTask>(*std::move(planned));
  const auto run = [&encoded, task](uint8_t*) {
    trainer::Realign(task->layout, task->plan, encoded.bytes.span(), task->indices.span(), absl::MakeSpan(task->states))
        .IgnoreError();
  };
  const auto collect = [task](uint8_t* out) {
    for (int32_t slot = 0; slot < task->layout.num_layers(); ++slot) {
      const absl::Span<uint8_t> slab = task->layout.slab(task->indices.span(), slot);
      std::memcpy(out, slab.data(), slab.size());
      out += slab.size();
    }
  };
  return MakeOperation(sample, name, encoded.bytes.span(), sample.layers(), run, collect);
}

}  // namespace

std::vector<Operation> ReadOperations(const WireSample& sample) {
  return {Unpack(sample), DecodeCuts(sample), Realign(sample, "realign-raw", sample.raw()),
          Realign(sample, "realign-packed", sample.packed())};
}

}  // namespace routing_replay::bench
