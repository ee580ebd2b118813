#include <algorithm>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/padding.h"
#include "trainer_plugin/layout/fields.h"

namespace routing_replay::trainer {
namespace {

// Finds the first difference; each step looks only if there is none yet.
class Comparison {
 public:
  Comparison(const PaddingPrediction& predicted, const MicroBatchLayout& passed)
      : predicted_(predicted), ours_(predicted.layout), passed_(passed) {}

  std::optional<std::string> Run() {
    Words("format", NameOf(ours_.format), NameOf(passed_.format));
    Words("cp_size", absl::StrCat(ours_.cp_size), absl::StrCat(passed_.cp_size));
    Words("tp_size", absl::StrCat(ours_.tp_size), absl::StrCat(passed_.tp_size));
    Words("sequence_parallel", OnOff(ours_), OnOff(passed_));
    if (ours_.cp_size > 1 && !OneSpan()) Words("partition", NameOf(ours_.partition), NameOf(passed_.partition));
    Words("the number of sequences", absl::StrCat(ours_.sequences.size()), absl::StrCat(passed_.sequences.size()));
    if (found_) return found_;
    ours_.format == TokenFormat::kThd ? Documents() : Rectangle();
    return found_;
  }

 private:
  // Documents and the stream as a whole are cut alike where there is one.
  bool OneSpan() const {
    const auto zigzag = [](Partition p) {
      return p == Partition::kZigzagPerDocument || p == Partition::kZigzagPerSequence;
    };
    return passed_.format == TokenFormat::kThd && passed_.cu_seqlens_padded.size() == 2 && zigzag(ours_.partition) &&
           zigzag(passed_.partition);
  }

  static std::string OnOff(const MicroBatchLayout& layout) { return layout.sequence_parallel ? "on" : "off"; }

  void Words(absl::string_view what, absl::string_view ours, absl::string_view passed) {
    if (found_ || ours == passed) return;
    found_ = absl::StrCat(what, " is ", passed, ", ", predicted_.policy, " gives ", ours);
  }

  void Rows(absl::string_view what, int64_t ours, int64_t passed) {
    if (found_ || ours == passed) return;
    found_ = absl::StrCat(what, " has ", passed, " rows, ", predicted_.policy, " gives ", ours, ": ", predicted_.rule);
  }

  static int64_t RowsOf(const MicroBatchLayout& layout, size_t document) {
    const std::vector<int64_t>& cu = layout.cu_seqlens_padded;
    return document + 1 < cu.size() ? cu[document + 1] - cu[document] : 0;
  }

  void Documents() {
    const size_t samples = ours_.sequences.size();
    const size_t documents = std::max(ours_.cu_seqlens_padded.size(), passed_.cu_seqlens_padded.size());
    for (size_t d = 0; d < documents && !found_; ++d) {
      Rows(d < samples ? absl::StrCat("sample ", d) : absl::StrCat("document ", d, ", padding behind the samples,"),
           RowsOf(ours_, d), RowsOf(passed_, d));
    }
    Rows("the stream", ours_.total_rows, passed_.total_rows);
  }

  void Rectangle() {
    Rows("every sequence of the rectangle", ours_.padded_length, passed_.padded_length);
    Words("batch_size", absl::StrCat(ours_.batch_size), absl::StrCat(passed_.batch_size));
    if (ours_.batch_size > 1) Words("row_order", NameOf(ours_.row_order), NameOf(passed_.row_order));
  }

  const PaddingPrediction& predicted_;
  const MicroBatchLayout& ours_;
  const MicroBatchLayout& passed_;
  std::optional<std::string> found_;
};

}  // namespace

std::optional<std::string> FirstDifference(const PaddingPrediction& predicted, const MicroBatchLayout& passed) {
  return Comparison(predicted, passed).Run();
}

}  // namespace routing_replay::trainer
