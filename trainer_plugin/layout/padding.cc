#include "routing_replay/trainer/padding.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/fields.h"
#include "trainer_plugin/layout/multiple.h"

namespace routing_replay::trainer {
namespace {

using Prediction = absl::StatusOr<PaddingPrediction>;

// Shared by all rules: checks, padded lengths, and the resulting layout.

// How many recorded rows a framework accepts for a sample of T tokens.
enum class Recorded : uint8_t { kTokensLessOne, kTokensOrOneLess, kAtMostTokens };

struct Framework {
  const char* name;
  Recorded recorded;
};
Framework FrameworkOf(const MegatronPadding&) { return {"Megatron", Recorded::kAtMostTokens}; }
Framework FrameworkOf(const VerlPadding&) { return {"verl", Recorded::kTokensOrOneLess}; }
Framework FrameworkOf(const SlimePadding&) { return {"slime", Recorded::kTokensLessOne}; }
Framework FrameworkOf(const MilesPadding&) { return {"miles", Recorded::kTokensLessOne}; }
Framework FrameworkOf(const SkyRlPadding&) { return {"SkyRL", Recorded::kAtMostTokens}; }
Framework FrameworkOf(const NemoRlPadding&) { return {"NeMo-RL", Recorded::kAtMostTokens}; }
Framework FrameworkOf(const MsSwiftPadding&) { return {"ms-swift", Recorded::kTokensOrOneLess}; }
Framework FrameworkOf(const PrimeRlPadding&) { return {"prime-rl", Recorded::kAtMostTokens}; }

bool Takes(Recorded rule, const SequenceShape& shape) {
  const int64_t less = std::max<int64_t>(shape.tokens - 1, 0);
  if (rule == Recorded::kAtMostTokens) return shape.recorded_rows <= shape.tokens;
  return shape.recorded_rows == less || (rule == Recorded::kTokensOrOneLess && shape.recorded_rows == shape.tokens);
}

const char* WordsOf(Recorded rule) {
  if (rule == Recorded::kAtMostTokens) return "at most T";
  return rule == Recorded::kTokensLessOne ? "T - 1" : "T or T - 1";
}

// Checks that options are within their bounds.
template <typename Options>
absl::Status CheckOptions(Options options) {
  absl::Status status;
  const auto check = [&](const char* name, int64_t value, Bounds bounds) {
    if (value >= bounds.least && value <= bounds.most) return;
    status.Update(Invalid(absl::StrCat("padding.", name),
                          absl::StrCat("must be in ", bounds.least, " … ", bounds.most, ", got ", value)));
  };
  Fields(
      [&](const char* name, const auto& value, const auto&... limit) {
        if constexpr ((std::is_same_v<std::decay_t<decltype(limit)>, Bounds> || ...)) {
          if constexpr (std::is_integral_v<std::decay_t<decltype(value)>>) {
            check(name, value, limit...);
          } else if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::vector<int64_t>>) {
            for (const int64_t one : value) check(name, one, limit...);
          } else if (value) {
            check(name, *value, limit...);
          }
        }
      },
      options);
  return status;
}

// Checks sizes and lengths, and that the framework accepts each number of recorded rows. Live sequences have no
// recorded rows, so they are not checked for that.
absl::Status CheckBatch(const UnpaddedBatch& batch, const Framework& framework) {
  RR_RETURN_IF_ERROR(CheckSize("cp_size", batch.cp_size));
  RR_RETURN_IF_ERROR(CheckSize("tp_size", batch.tp_size));
  if (batch.sequences.empty()) return Invalid("sequences", "is empty: there is nothing to pad");
  int64_t tokens = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceShape& shape = batch.sequences[i];
    const auto field = [i] { return absl::StrCat("sequences[", i, "]"); };
    if (shape.tokens < 0 || shape.recorded_rows < 0) return Invalid(field(), "a length is negative");
    if (shape.tokens > kMaxStreamRows - tokens) {
      return Invalid(field(), absl::StrCat("makes the batch longer than ", kMaxStreamRows, " tokens"));
    }
    tokens += shape.tokens;
    if (!shape.live && !Takes(framework.recorded, shape)) {
      return Invalid(Reason::kShape, field(),
                     absl::StrCat(shape.recorded_rows, " recorded rows for T = ", shape.tokens,
                                  " tokens: ", framework.name, " takes ", WordsOf(framework.recorded)));
    }
  }
  return absl::OkStatus();
}

int64_t LongestSample(const UnpaddedBatch& batch) {
  int64_t longest = 0;
  for (const SequenceShape& shape : batch.sequences) longest = std::max(longest, shape.tokens);
  return longest;
}

// Returns the padded length of each sample: its tokens rounded up to a multiple of `multiple`. INVALID_ARGUMENT if the
// sum is above kMaxStreamRows.
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

// A number of rows must be a multiple of this, so that first zigzag over CP and then SP can divide the rows evenly.
int64_t SliceUnit(const UnpaddedBatch& batch) {
  return Times(ZigzagUnit(batch.cp_size), batch.sequence_parallel ? batch.tp_size : 1);
}

MicroBatchLayout LayoutOf(const UnpaddedBatch& batch, Partition partition) {
  return {.sequences = batch.sequences,
          .partition = partition,
          .cp_size = batch.cp_size,
          .tp_size = batch.tp_size,
          .sequence_parallel = batch.sequence_parallel};
}

// `padded`: the padded length of each sample. `tail`: lengths of the padding documents after the samples; a length of 0
// gives no document.
MicroBatchLayout PackedLayout(const UnpaddedBatch& batch, Partition partition, const std::vector<int64_t>& padded,
                              const std::vector<int64_t>& tail) {
  MicroBatchLayout layout = LayoutOf(batch, partition);
  std::vector<int64_t>& bounds = layout.cu_seqlens_padded = {0};
  for (const int64_t rows : padded) bounds.push_back(bounds.back() + rows);
  for (const int64_t rows : tail) {
    if (rows > 0) bounds.push_back(bounds.back() + rows);
  }
  layout.total_rows = bounds.back();
  return layout;
}

// Where the padding of the stream goes: to the last sample, or into a document of its own.
enum class Tail : uint8_t { kLastSample, kDocument };

// Pads each sample to a multiple of `multiple`, and the stream to total_of(sum of the padded samples) rows.
template <typename TotalOf>
Prediction PredictPacked(const UnpaddedBatch& batch, Partition partition, int64_t multiple, Tail tail,
                         const TotalOf& total_of) {
  RR_ASSIGN_OR_RETURN(auto padded, PadEach(batch, multiple));
  const int64_t rows = Sum(padded);
  RR_ASSIGN_OR_RETURN(const int64_t total, absl::StatusOr<int64_t>(total_of(rows)));
  if (tail == Tail::kLastSample) padded.back() += total - rows;
  return PaddingPrediction{.layout =
                               PackedLayout(batch, partition, padded, {tail == Tail::kDocument ? total - rows : 0})};
}

// A rectangle [B][length], sequence-major.
PaddingPrediction PredictRectangle(const UnpaddedBatch& batch, Partition partition, int64_t length) {
  PaddingPrediction prediction{.layout = LayoutOf(batch, partition)};
  prediction.layout.format = TokenFormat::kBshd;
  prediction.layout.batch_size = static_cast<int64_t>(batch.sequences.size());
  prediction.layout.padded_length = length;
  return prediction;
}

// Megatron-LM.

// As in get_batch_on_this_cp_rank, CP is zigzag over each document. The kind of CP communication (p2p, all_gather, a2a,
// a2a+p2p with hierarchical groups) changes none of this.
Prediction Predict(const UnpaddedBatch& batch, const MegatronPadding&) {
  return PredictPacked(batch, Partition::kZigzagPerDocument, SliceUnit(batch), Tail::kLastSample, std::identity());
}

// verl.

constexpr int64_t kVerlFp8Rows = 128;   // An FP8 GEMM needs a multiple of this many local rows.
constexpr int64_t kVerlFp8Sample = 16;  // With FP8, the rows of a sample are a multiple of this.

int64_t StreamRows(int64_t rows, int64_t unit, int32_t cp_size, const VerlPadding& options) {
  const int64_t multiple = options.fp8 ? Times(unit, kVerlFp8Rows) : unit;
  rows = RoundUp(rows, options.length_bucket ? LeastCommonMultiple(multiple, *options.length_bucket) : multiple);
  if (!options.contiguous || !options.min_local_rows) return rows;
  return std::max(rows, Times(*options.min_local_rows, cp_size));
}

// `unit`: the multiple to which a sample is padded without FP8.
Prediction PredictStream(const UnpaddedBatch& batch, int64_t unit, const VerlPadding& options) {
  const int64_t sample = options.fp8 ? LeastCommonMultiple(kVerlFp8Sample, unit) : unit;
  return PredictPacked(batch, options.contiguous ? Partition::kContiguous : Partition::kZigzagPerDocument, sample,
                       Tail::kLastSample, [&](int64_t rows) { return StreamRows(rows, unit, batch.cp_size, options); });
}

PaddingPrediction PredictRectangle(const UnpaddedBatch& batch, int64_t unit, const VerlPadding& options) {
  int64_t multiple = unit;
  if (options.fp8) {
    const int64_t rows = Times(Times(batch.tp_size, batch.cp_size), kVerlFp8Rows);
    const int64_t length = rows / std::gcd(rows, static_cast<int64_t>(batch.sequences.size()));
    multiple = LeastCommonMultiple(LeastCommonMultiple(kVerlFp8Sample, multiple), length);
  }
  const int64_t longest = options.forced_max_length.value_or(LongestSample(batch));
  return PredictRectangle(batch, Partition::kZigzagPerSequence, RoundUp(longest, multiple));
}

Prediction Predict(const UnpaddedBatch& batch, const VerlPadding& options) {
  const bool contiguous = options.packed && options.contiguous;
  const int64_t unit = Times(batch.tp_size, contiguous ? batch.cp_size : ZigzagUnit(batch.cp_size));
  if (!options.packed) return PredictRectangle(batch, unit, options);
  return PredictStream(batch, unit, options);
}

// slime.

Prediction Predict(const UnpaddedBatch& batch, const SlimePadding& options) {
  const bool contiguous = options.allgather_cp && batch.cp_size > 1;
  const int64_t sample = contiguous ? 1 : ZigzagUnit(batch.cp_size);
  const int64_t stream = Times(Times(batch.tp_size, options.pad_size_multiplier), batch.cp_size);
  return PredictPacked(batch, contiguous ? Partition::kContiguous : Partition::kZigzagPerDocument, sample,
                       Tail::kDocument, [&](int64_t rows) { return RoundUp(rows, stream); });
}

// miles.

int64_t RectangleMultiple(const UnpaddedBatch& batch, const MilesPadding& options) {
  int64_t multiple = Times(batch.tp_size, options.pad_size_multiplier);
  for (const int64_t ratio : options.compress_ratios) {
    if (ratio > 0) multiple = std::max(multiple, Times(ratio, ZigzagUnit(batch.cp_size)));
  }
  return multiple;
}

Prediction Predict(const UnpaddedBatch& batch, const MilesPadding& options) {
  if (options.packed) {
    return Predict(
        batch, SlimePadding{.pad_size_multiplier = options.pad_size_multiplier, .allgather_cp = options.allgather_cp});
  }
  const int64_t sample = options.allgather_cp ? 1 : ZigzagUnit(batch.cp_size);
  return PredictRectangle(batch,
                          options.allgather_cp ? Partition::kContiguousPerSequence : Partition::kZigzagPerSequence,
                          RoundUp(MilesMaxLength(batch, options), sample));
}

// SkyRL.

constexpr int64_t kSkyRlFp8Rows = 16;

Prediction Predict(const UnpaddedBatch& batch, const SkyRlPadding& options) {
  const bool for_cp = options.packed || options.release == SkyRlPadding::Release::kPullRequest1327;
  const int64_t multiple =
      for_cp ? SkyRlPackedAlignment(batch, options.fp8) : SkyRlUnpackedAlignment(batch, options.fp8);
  if (options.packed) {
    return PredictPacked(batch, Partition::kZigzagPerDocument, multiple, Tail::kLastSample, std::identity());
  }
  return PredictRectangle(batch, Partition::kZigzagPerSequence, RoundUp(LongestSample(batch), multiple));
}

// NeMo-RL.

constexpr int64_t kHybridEpRows = 128;

int64_t Fp8Rows(Fp8Recipe recipe) {
  if (recipe == Fp8Recipe::kBlockwise) return 128;
  if (recipe == Fp8Recipe::kMxfp8) return 32;
  return recipe == Fp8Recipe::kDelayed ? 16 : 1;
}

Prediction PredictPack(const UnpaddedBatch& batch, const NemoRlPadding& options) {
  RR_ASSIGN_OR_RETURN(const auto multiples, GetNemoRlMultiples(batch, options));
  const std::optional<int64_t> packed_to = multiples.packed_to;
  const auto total_of = [&](int64_t rows) -> absl::StatusOr<int64_t> {
    const int64_t total = RoundUp(std::max(rows, packed_to.value_or(rows)), multiples.packed);
    if (packed_to && total > *packed_to && options.max_packed_length_in_batch > 0) {
      return Invalid(Reason::kShape, "padding.max_packed_length_in_batch",
                     absl::StrCat(options.max_packed_length_in_batch, " is below the ", rows, " rows of this pack"));
    }
    return total;
  };
  return PredictPacked(batch, Partition::kZigzagPerDocument, multiples.individual, Tail::kLastSample, total_of);
}

Prediction Predict(const UnpaddedBatch& batch, const NemoRlPadding& options) {
  if (options.packed) return PredictPack(batch, options);
  const int64_t multiple = options.make_sequence_length_divisible_by;
  return PredictRectangle(batch, Partition::kZigzagPerSequence, RoundUp(LongestSample(batch), multiple));
}

// ms-swift.

using Multiple = std::optional<int64_t>;

constexpr int64_t kFusedAttentionRows = 64;

Multiple ParallelMultiple(const UnpaddedBatch& batch) {
  Multiple multiple;
  if (batch.tp_size > 1 && batch.sequence_parallel) multiple = batch.tp_size;
  if (batch.cp_size > 1) multiple = Times(multiple.value_or(1), batch.cp_size);
  return multiple;
}

Multiple LowPrecisionMultiple(Multiple multiple, const MsSwiftPadding& options) {
  const bool older = options.release == MsSwiftPadding::Release::kBefore9722;
  const int64_t so_far = multiple.value_or(1);
  if (options.fp8_recipe == Fp8Recipe::kBlockwise) return Times(so_far, 128);
  if (options.fp8_recipe == Fp8Recipe::kMxfp8 && !older) return Times(so_far, 32);
  if (options.fp8_format.empty() && (older || options.fp4_format.empty())) return multiple;
  return older ? std::max<int64_t>(Times(so_far, 8), 16) : Times(so_far, 16);
}

// Returns the length to which pull request 8393 pads; nothing if its rule does not apply.
Multiple HybridEpLength(const MsSwiftPadding& options) {
  if (!options.pull_request_8393 || options.dispatcher != "hybridep") return std::nullopt;
  return options.seq_length ? options.seq_length : options.max_length;
}

Prediction PredictStream(const UnpaddedBatch& batch, int64_t multiple) {
  const int64_t unit = ZigzagUnit(batch.cp_size);
  RR_ASSIGN_OR_RETURN(const auto padded, PadEach(batch, unit));
  const int64_t rows = Sum(padded);
  const int64_t total = RoundUp(rows, multiple);
  if (total > kMaxStreamRows) {
    return Invalid("padding", absl::StrCat("the stream, padded to a multiple of ", multiple, " rows, has more than ",
                                           kMaxStreamRows));
  }
  if ((total - rows) % unit != 0) {
    return Invalid(
        Reason::kShape, "padding",
        absl::StrCat("get_padding_to gives ", multiple, ", not a multiple of 2 x cp_size = ", unit,
                     ": cu_seqlens end at ", rows + (total - rows) / unit * unit, ", the stream has ", total, " rows"));
  }
  return PaddingPrediction{.layout = PackedLayout(batch, Partition::kZigzagPerDocument, padded,
                                                  std::vector<int64_t>((total - rows) / unit, unit))};
}

PaddingPrediction PredictRectangle(const UnpaddedBatch& batch, int64_t multiple) {
  const int64_t unit = ZigzagUnit(batch.cp_size);
  return PredictRectangle(batch, Partition::kZigzagPerSequence, RoundUp(RoundUp(LongestSample(batch), multiple), unit));
}

Prediction Predict(const UnpaddedBatch& batch, const MsSwiftPadding& options) {
  const int64_t multiple = MsSwiftPaddingTo(batch, options).value_or(1);
  if (!options.padding_free) return PredictRectangle(batch, multiple);
  return PredictStream(batch, multiple);
}

// prime-rl.

Prediction Predict(const UnpaddedBatch& batch, const PrimeRlPadding& options) {
  return PredictPacked(batch, Partition::kContiguous, 1, Tail::kLastSample,
                       [&](int64_t rows) { return RoundUp(rows, options.pad_to_multiple_of); });
}

}  // namespace

Prediction PredictPadding(const UnpaddedBatch& batch, const PaddingPolicy& policy) {
  return std::visit(
      [&](const auto& options) -> Prediction {
        RR_RETURN_IF_ERROR(CheckOptions(options));
        RR_RETURN_IF_ERROR(CheckBatch(batch, FrameworkOf(options)));
        Prediction prediction = Predict(batch, options);
        if (!prediction.ok()) return prediction;
        prediction->policy = PolicyName(options);
        return prediction;
      },
      policy);
}

int64_t MilesMaxLength(const UnpaddedBatch& batch, const MilesPadding& options) {
  return RoundUp(LongestSample(batch), RectangleMultiple(batch, options));
}

int64_t SkyRlPackedAlignment(const UnpaddedBatch& batch, bool fp8) {
  const int64_t multiple = Times(batch.tp_size, ZigzagUnit(batch.cp_size));
  return fp8 ? LeastCommonMultiple(multiple, Times(kSkyRlFp8Rows, batch.cp_size)) : multiple;
}

int64_t SkyRlUnpackedAlignment(const UnpaddedBatch& batch, bool fp8) {
  return fp8 ? LeastCommonMultiple(batch.tp_size, kSkyRlFp8Rows) : batch.tp_size;
}

bool SkyRlFp8Enabled(absl::string_view value) {
  static constexpr absl::string_view kOff[] = {"", "none", "null", "no", "false", "0"};
  const std::string lower = absl::AsciiStrToLower(value);
  return std::find(std::begin(kOff), std::end(kOff), lower) == std::end(kOff);
}

absl::StatusOr<NemoRlMultiples> GetNemoRlMultiples(const UnpaddedBatch& batch, const NemoRlPadding& options) {
  const int64_t unit = SliceUnit(batch);
  if (options.make_sequence_length_divisible_by % unit != 0) {
    return Invalid(Reason::kShape, "padding.make_sequence_length_divisible_by",
                   absl::StrCat(options.make_sequence_length_divisible_by, " is not a multiple of ", unit,
                                ", which cp_size = ", batch.cp_size, " and tp_size = ", batch.tp_size, " require"));
  }
  NemoRlMultiples multiples{.individual = options.make_sequence_length_divisible_by};
  const int64_t divisor = std::max(Fp8Rows(options.fp8_recipe), options.hybridep ? kHybridEpRows : 1);
  if (divisor > 1) multiples.packed = Times(divisor, unit);
  if (options.pipeline_size > 1) {
    int64_t longest = options.max_packed_length_in_batch;
    if (longest == 0) {
      RR_ASSIGN_OR_RETURN(const auto padded, PadEach(batch, multiples.individual));
      longest = Sum(padded);
    }
    multiples.packed_to = RoundUp(longest, multiples.packed);
  }
  return multiples;
}

std::optional<int64_t> MsSwiftPaddingTo(const UnpaddedBatch& batch, const MsSwiftPadding& options) {
  if (const Multiple length = HybridEpLength(options)) return length;
  const Multiple parallel = ParallelMultiple(batch);
  const Multiple multiple = LowPrecisionMultiple(parallel, options);
  if (!options.fused_attention) return multiple;
  return std::max(multiple.value_or(1), Times(parallel.value_or(1), kFusedAttentionRows));
}

namespace {

bool IsZigzag(const MicroBatchLayout& layout) {
  return layout.partition == Partition::kZigzagPerDocument || layout.partition == Partition::kZigzagPerSequence;
}

// Returns boundary number i; if there are fewer boundaries, the end of the stream.
int64_t BoundOf(const MicroBatchLayout& layout, size_t i) {
  return i < layout.cu_seqlens_padded.size() ? layout.cu_seqlens_padded[i] : layout.total_rows;
}

}  // namespace

std::optional<std::string> FirstDifference(const PaddingPrediction& predicted, const MicroBatchLayout& passed) {
  const MicroBatchLayout& ours = predicted.layout;
  std::optional<std::string> found;
  const auto compare = [&](absl::string_view what, const auto& theirs, const auto& own) {
    if (!found && theirs != own) found = absl::StrCat(what, " is ", theirs, ", ", predicted.policy, " gives ", own);
  };
  // With a single document, zigzag per document and zigzag over the stream are the same.
  const bool one_span =
      passed.format == TokenFormat::kThd && passed.cu_seqlens_padded.size() == 2 && IsZigzag(ours) && IsZigzag(passed);
  compare("format", NameOf(passed.format), NameOf(ours.format));
  compare("cp_size", passed.cp_size, ours.cp_size);
  compare("tp_size", passed.tp_size, ours.tp_size);
  compare("sequence_parallel", int32_t{passed.sequence_parallel}, int32_t{ours.sequence_parallel});
  if (passed.cp_size > 1 && !one_span) compare("partition", NameOf(passed.partition), NameOf(ours.partition));
  compare("the number of sequences", passed.sequences.size(), ours.sequences.size());
  compare("padded_length", passed.padded_length, ours.padded_length);
  compare("batch_size", passed.batch_size, ours.batch_size);
  if (passed.batch_size > 1) compare("row_order", NameOf(passed.row_order), NameOf(ours.row_order));
  for (size_t i = 0; i < std::max(ours.cu_seqlens_padded.size(), passed.cu_seqlens_padded.size()); ++i) {
    compare(absl::StrCat("cu_seqlens_padded[", i, "]"), BoundOf(passed, i), BoundOf(ours, i));
  }
  compare("total_rows", passed.total_rows, ours.total_rows);
  return found;
}

}  // namespace routing_replay::trainer
