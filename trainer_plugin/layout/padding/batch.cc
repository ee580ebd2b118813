#include "trainer_plugin/layout/padding/batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/multiple.h"
#include "trainer_plugin/layout/rows_check.h"

namespace routing_replay::trainer {
namespace {

bool Takes(RecordedRule rule, const SequenceShape& shape) {
  const int64_t less = std::max<int64_t>(shape.tokens - 1, 0);
  switch (rule) {
    case RecordedRule::kTokensLessOne:
      return shape.recorded_rows == less;
    case RecordedRule::kTokensOrOneLess:
      return shape.recorded_rows == shape.tokens || shape.recorded_rows == less;
    case RecordedRule::kAtMostTokens:
      break;
  }
  return shape.recorded_rows <= shape.tokens;
}

absl::string_view WordsOf(RecordedRule rule) {
  switch (rule) {
    case RecordedRule::kTokensLessOne:
      return "T - 1";
    case RecordedRule::kTokensOrOneLess:
      return "T or T - 1";
    case RecordedRule::kAtMostTokens:
      break;
  }
  return "at most T";
}

}  // namespace

absl::Status CheckBatch(const UnpaddedBatch& batch, absl::string_view framework, RecordedRule rule) {
  if (absl::Status status = CheckSize("cp_size", batch.cp_size); !status.ok()) return status;
  if (absl::Status status = CheckSize("tp_size", batch.tp_size); !status.ok()) return status;
  if (batch.sequences.empty()) return Invalid("sequences", "is empty: there is nothing to pad");
  int64_t tokens = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceShape& shape = batch.sequences[i];
    const auto field = [i] { return absl::StrCat("sequences[", i, "]"); };
    if (shape.tokens < 0 || shape.recorded_rows < 0) return Invalid(field(), "a length is negative");
    if (shape.tokens > kMaxStreamRows - tokens) {
      return Invalid(field(), absl::StrCat("brings the batch above ", kMaxStreamRows, " tokens"));
    }
    tokens += shape.tokens;
    if (!shape.live && !Takes(rule, shape)) {
      return Invalid(Reason::kShape, field(),
                     absl::StrCat(shape.recorded_rows, " recorded rows for T = ", shape.tokens, " tokens: ", framework,
                                  " takes ", WordsOf(rule)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOption(absl::string_view name, int64_t value) {
  if (value >= 1 && value <= kMaxStreamRows) return absl::OkStatus();
  return Invalid(absl::StrCat("padding.", name), absl::StrCat(value, " is not in 1 … ", kMaxStreamRows));
}

int64_t LongestSample(const UnpaddedBatch& batch) {
  int64_t longest = 0;
  for (const SequenceShape& shape : batch.sequences) longest = std::max(longest, shape.tokens);
  return longest;
}

absl::StatusOr<std::vector<int64_t>> PadEach(const UnpaddedBatch& batch, int64_t multiple) {
  std::vector<int64_t> padded;
  int64_t total = 0;
  for (const SequenceShape& shape : batch.sequences) {
    padded.push_back(RoundUp(shape.tokens, multiple));
    total += padded.back();
    if (total > kMaxStreamRows) {
      return Invalid("padding", absl::StrCat("samples padded to multiples of ", multiple, " have more than ",
                                             kMaxStreamRows, " rows"));
    }
  }
  return padded;
}

int64_t Sum(const std::vector<int64_t>& lengths) { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }

void StretchLast(std::vector<int64_t>& padded, int64_t total) { padded.back() += total - Sum(padded); }

namespace {

MicroBatchLayout LayoutOf(const UnpaddedBatch& batch, Partition partition) {
  return {.sequences = batch.sequences,
          .partition = partition,
          .cp_size = batch.cp_size,
          .tp_size = batch.tp_size,
          .sequence_parallel = batch.sequence_parallel};
}

}  // namespace

MicroBatchLayout PackedLayout(const UnpaddedBatch& batch, Partition partition, const std::vector<int64_t>& padded,
                              const std::vector<int64_t>& tail) {
  MicroBatchLayout layout = LayoutOf(batch, partition);
  layout.cu_seqlens_padded = {0};
  for (const std::vector<int64_t>* lengths : {&padded, &tail}) {
    for (const int64_t rows : *lengths) layout.cu_seqlens_padded.push_back(layout.cu_seqlens_padded.back() + rows);
  }
  layout.total_rows = layout.cu_seqlens_padded.back();
  return layout;
}

MicroBatchLayout RectangleLayout(const UnpaddedBatch& batch, Partition partition, int64_t length) {
  MicroBatchLayout layout = LayoutOf(batch, partition);
  layout.format = TokenFormat::kBshd;
  layout.batch_size = static_cast<int64_t>(batch.sequences.size());
  layout.padded_length = length;
  return layout;
}

void AddBatchMajorHazard(PaddingPrediction& prediction) {
  if (prediction.layout.batch_size <= 1) return;
  prediction.hazards.push_back(
      absl::StrCat(prediction.policy, " flattens the routes of ", prediction.layout.batch_size,
                   " samples batch-major (row b·S + s), Megatron's router sees sequence-major rows (row s·B + b): its "
                   "own replay is right for one sample only"));
}

void AddSliceHazard(const UnpaddedBatch& batch, PaddingPrediction& prediction) {
  if (batch.tp_size == 1 || batch.sequence_parallel) return;
  prediction.hazards.push_back(absl::StrCat(prediction.policy, " slices routes over tp_size = ", batch.tp_size,
                                            " whatever sequence_parallel says: with it off its own replay misaligns"));
}

PaddingPrediction Examined(PaddingPrediction prediction) {
  const absl::Status status = BuildRowMap(prediction.layout, {}).status();
  if (!status.ok())
    prediction.hazards.push_back(absl::StrCat("the layout cannot be cut: ", std::string(status.message())));
  return prediction;
}

}  // namespace routing_replay::trainer
