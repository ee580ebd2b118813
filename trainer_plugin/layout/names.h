// Names of the layout's choices, in JSON and in messages.
#ifndef TRAINER_PLUGIN_LAYOUT_NAMES_H_
#define TRAINER_PLUGIN_LAYOUT_NAMES_H_

#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "routing_replay/trainer/rows.h"

namespace routing_replay::trainer {

template <typename Enum>
using Names = std::vector<std::pair<const char*, Enum>>;

const Names<TokenFormat>& TokenFormatNames();  // "THD", "BSHD"
const Names<Partition>& PartitionNames();      // "zigzag_per_document", …
const Names<RowOrder>& RowOrderNames();        // "sequence_major", "batch_major"
const Names<SpSlice>& SpSliceNames();          // "after_flatten", "before_flatten"

absl::string_view NameOf(TokenFormat format);
absl::string_view NameOf(Partition partition);
absl::string_view NameOf(RowOrder order);
absl::string_view NameOf(SpSlice slice);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_NAMES_H_
