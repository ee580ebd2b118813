#include "trainer_plugin/fetch/stage_blocks.h"

#include "proto/wire/block/cut.h"

namespace routing_replay::trainer {
namespace {

// Rows of one block, as one piece.
absl::Status StageRows(const Geometry& geometry, const ReplayPlan& plan, const BlockView& block, RowRange rows,
                       int32_t index, StagingSink& sink) {
  std::vector<uint8_t>& staging = *sink.staging();
  const size_t begin = staging.size();
  for (const OwnedLayer& layer : plan.layers) {
    const size_t at = staging.size();
    staging.resize(at + geometry.cut_bytes(layer.ordinal, rows.begin - block.rows.begin, rows.size(), block.codec));
    const auto crc = CutPlane(geometry, block, layer.ordinal, rows, absl::MakeSpan(staging).subspan(at));
    if (!crc.ok()) return crc.status();
  }
  return sink.OnPiece({.sample_index = index,
                       .layer_begin = 0,
                       .layer_count = static_cast<int32_t>(plan.layers.size()),
                       .rows = rows,
                       .codec = block.codec,
                       .bytes = absl::MakeConstSpan(staging).subspan(begin)});
}

}  // namespace

absl::Status StageBlocks(const Geometry& geometry, const ReplayPlan& plan, absl::Span<const Block> blocks,
                         absl::Span<const RowRange> rows, int32_t index, StagingSink& sink) {
  for (const Block& block : blocks) {
    for (const RowRange asked : Clip(rows, block.rows)) {
      absl::Status status = StageRows(geometry, plan, block.view(), asked, index, sink);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace routing_replay::trainer
