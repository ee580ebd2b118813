// Arithmetic on RowRun.
#ifndef TRAINER_PLUGIN_LAYOUT_ROW_RUN_H_
#define TRAINER_PLUGIN_LAYOUT_ROW_RUN_H_

#include "routing_replay/trainer/rows.h"
#include "routing_replay/wire/row_range.h"

namespace routing_replay::trainer {

// The entries [begin, end) of `run`. Requires 0 <= begin <= end <= run.count.
RowRun SubRun(const RowRun& run, int64_t begin, int64_t end);

// The entries whose local row is in `window`, their local rows counted from window.begin. May have count 0.
RowRun ClipToWindow(const RowRun& run, RowRange window);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_ROW_RUN_H_
