// Whether a micro-batch and a rank can be, before any row is computed.
#ifndef TRAINER_PLUGIN_LAYOUT_ROWS_CHECK_H_
#define TRAINER_PLUGIN_LAYOUT_ROWS_CHECK_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "routing_replay/trainer/rows.h"

namespace routing_replay::trainer {

// The size of a parallel group: INVALID_ARGUMENT (kField) unless it is in 1 … 2^20.
absl::Status CheckSize(absl::string_view field, int32_t size);

// Everything that BuildRowMap refuses except what depends on the number of local rows. After OK no sum or product of
// the layout's sizes overflows, and every division that the partition needs is exact.
absl::Status CheckRows(const MicroBatchLayout& layout, const RowRank& rank);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_ROWS_CHECK_H_
