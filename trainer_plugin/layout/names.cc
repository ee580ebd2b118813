#include "trainer_plugin/layout/names.h"

namespace routing_replay::trainer {
namespace {

template <typename Enum>
absl::string_view NameIn(const Names<Enum>& names, Enum value) {
  for (const auto& [name, meaning] : names) {
    if (meaning == value) return name;
  }
  return "";
}

}  // namespace

const Names<TokenFormat>& TokenFormatNames() {
  static const auto& names = *new Names<TokenFormat>{{"THD", TokenFormat::kThd}, {"BSHD", TokenFormat::kBshd}};
  return names;
}

const Names<Partition>& PartitionNames() {
  static const auto& names = *new Names<Partition>{{"zigzag_per_document", Partition::kZigzagPerDocument},
                                                   {"zigzag_per_sequence", Partition::kZigzagPerSequence},
                                                   {"contiguous", Partition::kContiguous},
                                                   {"contiguous_per_sequence", Partition::kContiguousPerSequence},
                                                   {"explicit", Partition::kExplicit}};
  return names;
}

const Names<RowOrder>& RowOrderNames() {
  static const auto& names =
      *new Names<RowOrder>{{"sequence_major", RowOrder::kSequenceMajor}, {"batch_major", RowOrder::kBatchMajor}};
  return names;
}

const Names<SpSlice>& SpSliceNames() {
  static const auto& names =
      *new Names<SpSlice>{{"after_flatten", SpSlice::kAfterFlatten}, {"before_flatten", SpSlice::kBeforeFlatten}};
  return names;
}

absl::string_view NameOf(TokenFormat format) { return NameIn(TokenFormatNames(), format); }
absl::string_view NameOf(Partition partition) { return NameIn(PartitionNames(), partition); }
absl::string_view NameOf(RowOrder order) { return NameIn(RowOrderNames(), order); }
absl::string_view NameOf(SpSlice slice) { return NameIn(SpSliceNames(), slice); }

}  // namespace routing_replay::trainer
