// R2: what each rank of a model replica recorded of a micro-batch, on all of them, for MergeRecords.
//
//   const auto gathered = GatherRecords(*collective, geometry, micro_batch, ranks, indices, deadline);
//   if (collective->rank() == 0) merged = MergeRecords(geometry, micro_batch, RecordsOf(*gathered));
#ifndef ROUTING_REPLAY_TRAINER_GATHER_RECORDS_H_
#define ROUTING_REPLAY_TRAINER_GATHER_RECORDS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/buffer_layout.h"
#include "routing_replay/trainer/collective.h"
#include "routing_replay/trainer/merge_records.h"
#include "routing_replay/trainer/rows.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::trainer {

// What a rank of the collective holds of the micro-batch.
struct RecordingRank {
  std::vector<int32_t> ordinals;  // Its MoE layers, in the order of its index buffer; may be none.
  RowRank rows;
};

struct GatheredRecord {
  BufferLayout layout;
  RowMap row_map;
  std::vector<uint8_t> indices;
};

// One entry per rank that has layers, in the order of ranks. `ranks` is the same on all of them, one entry per rank;
// `indices` is this rank's index buffer. Ids travel in the compact width, and nothing else does. INVALID_ARGUMENT
// (kLength) for another number of ranks, nothing sent, and, on all ranks, for a rank that gave an index buffer of
// another size than it has; as BuildRowMap, BufferLayout::Create and AllGather.
absl::StatusOr<std::vector<GatheredRecord>> GatherRecords(Collective& collective, const Geometry& geometry,
                                                          const MicroBatchLayout& layout,
                                                          absl::Span<const RecordingRank> ranks,
                                                          absl::Span<const uint8_t> indices,
                                                          Collective::Deadline deadline);

// As MergeRecords takes them; refers to `gathered`.
std::vector<RankRecord> RecordsOf(absl::Span<const GatheredRecord> gathered);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_GATHER_RECORDS_H_
