// Rows of blocks in memory into the staging of a fetch.
#ifndef TRAINER_PLUGIN_FETCH_STAGE_BLOCKS_H_
#define TRAINER_PLUGIN_FETCH_STAGE_BLOCKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/wire/block/block.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/wire/geometry.h"
#include "trainer_plugin/fetch/staging_sink.h"

namespace routing_replay::trainer {

// Of a sample's blocks the rows asked for, as far as they are there, and all layers of the plan, as the pieces of the
// read's sample number `index`. Planes are compared with their CRCs.
absl::Status StageBlocks(const Geometry& geometry, const ReplayPlan& plan, absl::Span<const Block> blocks,
                         absl::Span<const RowRange> rows, int32_t index, StagingSink& sink);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_FETCH_STAGE_BLOCKS_H_
