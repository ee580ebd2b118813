// What all padding policies share: checks of the batch, padded lengths, and the layout that they make.
#ifndef TRAINER_PLUGIN_LAYOUT_PADDING_BATCH_H_
#define TRAINER_PLUGIN_LAYOUT_PADDING_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "routing_replay/trainer/padding/prediction.h"

namespace routing_replay::trainer {

// How many recorded rows a framework takes for a sample of T tokens.
enum class RecordedRule : uint8_t { kTokensLessOne, kTokensOrOneLess, kAtMostTokens };

// INVALID_ARGUMENT: sizes that cannot be, no sequence, more than kMaxStreamRows tokens (kField); recorded rows of a
// sample that the framework refuses (kShape). What is of no sample has none.
absl::Status CheckBatch(const UnpaddedBatch& batch, absl::string_view framework, RecordedRule rule);

// INVALID_ARGUMENT (kField, "padding.<name>") unless 1 <= value <= kMaxStreamRows.
absl::Status CheckOption(absl::string_view name, int64_t value);

int64_t LongestSample(const UnpaddedBatch& batch);

// Each sample's tokens to a multiple: [B]. INVALID_ARGUMENT if the sum is above kMaxStreamRows.
absl::StatusOr<std::vector<int64_t>> PadEach(const UnpaddedBatch& batch, int64_t multiple);
int64_t Sum(const std::vector<int64_t>& lengths);
// The last sample takes what is missing to `total`.
void StretchLast(std::vector<int64_t>& padded, int64_t total);

// padded: [B]; tail: lengths of the documents of padding behind the samples.
MicroBatchLayout PackedLayout(const UnpaddedBatch& batch, Partition partition, const std::vector<int64_t>& padded,
                              const std::vector<int64_t>& tail = {});
// A rectangle [B][length], sequence-major.
MicroBatchLayout RectangleLayout(const UnpaddedBatch& batch, Partition partition, int64_t length);

// A rectangle of several samples whose routes the framework flattens batch-major.
void AddBatchMajorHazard(PaddingPrediction& prediction);
// A framework that slices rows over tp whether sequence parallelism is on or not.
void AddSliceHazard(const UnpaddedBatch& batch, PaddingPrediction& prediction);

// The prediction, with a hazard where no rank can have its rows of it.
PaddingPrediction Examined(PaddingPrediction prediction);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_PADDING_BATCH_H_
