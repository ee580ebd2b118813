// The row map in reverse: from what the ranks recorded of a micro-batch to the rows of its sequences.
//
// It is made of the ranks' own row maps, so that every layout that can be replayed can be recorded. What verl does for
// zigzag and contiguous partitions in merge_router_topk_indices (gather over TP, gather over CP, inverse map per
// sample) is one case of it.
#ifndef ROUTING_REPLAY_TRAINER_ROW_MERGE_H_
#define ROUTING_REPLAY_TRAINER_ROW_MERGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/rows.h"

namespace routing_replay::trainer {

// Rows run.row, run.row + 1, … of run.sequence are at local rows run.local_row, run.local_row + run.stride, … of record
// `record`.
struct RecordRun {
  int32_t record = 0;
  RowRun run;
  friend bool operator==(const RecordRun&, const RecordRun&) = default;
};

struct SequenceMerge {
  // Rows 0 … recorded_rows - 1 once each, ascending.
  std::vector<RecordRun> runs;
  // The same rows where local rows show them once more: on tensor ranks without sequence parallelism, which all see the
  // whole CP slice, and in explicit lists that repeat. Ascending.
  std::vector<RecordRun> copies;
};

// One entry per sequence. `maps` holds what BuildRowMap gives for `layout` on each rank of the model replica that
// shares the layers, in any order; where several show a row, the first one has it in `runs`. recorded_rows of a
// sequence says which rows are merged: T - 1 as the service keeps them, or T. `samples` names the sequences in errors,
// or is empty. FAILED_PRECONDITION (kNotCommitted, with sample, row and missing_rows) if no map shows some of a
// sequence's rows. INVALID_ARGUMENT (kField) for a map that shows a sequence or a row which the layout does not have,
// and for `samples` of another size.
absl::StatusOr<std::vector<SequenceMerge>> MergeRows(const MicroBatchLayout& layout, absl::Span<const RowMap> maps,
                                                     absl::Span<const std::string> samples = {});

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_ROW_MERGE_H_
