// Random micro-batches for property tests of layouts.
#ifndef TESTS_SUPPORT_RANDOM_LAYOUTS_H_
#define TESTS_SUPPORT_RANDOM_LAYOUTS_H_

#include <algorithm>
#include <cstdint>
#include <random>

#include "routing_replay/trainer/rows.h"

namespace routing_replay::testing {

class RandomLayouts {
 public:
  explicit RandomLayouts(uint32_t seed) : random_(seed) {}

  // A valid layout with any partition.
  trainer::MicroBatchLayout Next() {
    trainer::MicroBatchLayout layout;
    layout.cp_size = static_cast<int32_t>(Pick(1, 4));
    layout.tp_size = static_cast<int32_t>(Pick(1, 3));
    layout.sequence_parallel = Pick(0, 1);
    Pick(0, 1) ? Packed(layout) : Rectangle(layout);
    return layout;
  }

  int64_t Pick(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }

 private:
  int64_t Unit(const trainer::MicroBatchLayout& layout) const { return 2 * layout.cp_size * layout.tp_size; }

  trainer::SequenceShape Shape(int64_t padded_length) {
    trainer::SequenceShape shape{.tokens = Pick(0, 9) == 0 ? padded_length : Pick(0, padded_length)};
    shape.recorded_rows = Pick(0, 3) == 0 ? Pick(0, shape.tokens) : std::max<int64_t>(0, shape.tokens - 1);
    shape.first_row = Pick(0, 3) == 0 ? Pick(0, padded_length - shape.tokens) : 0;
    return shape;
  }

  void Packed(trainer::MicroBatchLayout& layout) {
    constexpr trainer::Partition kPartitions[] = {trainer::Partition::kZigzagPerDocument,
                                                  trainer::Partition::kZigzagPerSequence,
                                                  trainer::Partition::kContiguous};
    layout.partition = kPartitions[Pick(0, 2)];
    layout.cu_seqlens_padded = {0};
    for (int64_t d = Pick(0, 6); d > 0; --d) {
      // With zigzag per document, the length of each document must be a multiple of Unit. Otherwise only that of the
      // whole stream must be, so a document may have any length.
      const int64_t unit = layout.partition == trainer::Partition::kZigzagPerDocument ? Unit(layout) : 1;
      const int64_t rows = Pick(0, 5) * unit;
      layout.sequences.push_back(Shape(rows));
      layout.cu_seqlens_padded.push_back(layout.cu_seqlens_padded.back() + rows);
    }
    const int64_t end = layout.cu_seqlens_padded.back();
    layout.total_rows = (end + Unit(layout) - 1) / Unit(layout) * Unit(layout);
    if (layout.total_rows > end || Pick(0, 1)) layout.cu_seqlens_padded.push_back(layout.total_rows);
    const int64_t local = layout.total_rows / layout.cp_size / (layout.sequence_parallel ? layout.tp_size : 1);
    const int64_t samples = Pick(1, 4);
    if (local > 0 && local % samples == 0 && Pick(0, 1)) layout.tokens_per_sample = local / samples;
  }

  void Rectangle(trainer::MicroBatchLayout& layout) {
    layout.format = trainer::TokenFormat::kBshd;
    layout.partition = Pick(0, 1) ? trainer::Partition::kZigzagPerSequence : trainer::Partition::kContiguousPerSequence;
    layout.row_order = Pick(0, 1) ? trainer::RowOrder::kSequenceMajor : trainer::RowOrder::kBatchMajor;
    layout.sp_slice = Pick(0, 1) ? trainer::SpSlice::kBeforeFlatten : trainer::SpSlice::kAfterFlatten;
    layout.batch_size = Pick(1, 5);
    layout.padded_length = Pick(0, 4) * Unit(layout);
    for (int64_t b = Pick(0, layout.batch_size); b > 0; --b) layout.sequences.push_back(Shape(layout.padded_length));
  }

  std::mt19937 random_;
};

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_RANDOM_LAYOUTS_H_
