// How training frameworks pad a micro-batch before they pack it, and checks of what a trainer really passed. For verl,
// look for VerlPadding here and "verl" in layout/padding.cc.
//
// A policy is the rule of one framework: its options below, named as in the framework (in parentheses if that name
// differs), and its arithmetic in layout/padding.cc. Use it for preallocation and checks; what the trainer really
// passed always wins. B sequences of T tokens each; cp, tp: sizes of context and tensor parallelism.
#ifndef ROUTING_REPLAY_TRAINER_PADDING_H_
#define ROUTING_REPLAY_TRAINER_PADDING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "routing_replay/trainer/rows.h"

namespace routing_replay::trainer {

// A micro-batch before padding: B sequences of tokens, as rows.h counts them, and the parallel sizes of the trainer.
struct UnpaddedBatch {
  std::vector<SequenceShape> sequences;  // [B], B >= 1
  int32_t cp_size = 1;
  int32_t tp_size = 1;
  bool sequence_parallel = false;
};

// FP8 recipes by Megatron's names; kDelayed stands for all that are not named here.
enum class Fp8Recipe : uint8_t { kNone = 0, kDelayed = 1, kBlockwise = 2, kMxfp8 = 3 };

// Megatron-LM's own training: megatron/core/utils.py get_batch_on_this_cp_rank,
// megatron/training/datasets/sft_dataset.py.
//
// Packed, if documents are cut: each document is padded to a multiple of u = (2 · cp if cp > 1) · (tp under SP), and
// the last one is stretched to the end of the pack (SFTDataset, which itself pads by 2 · cp). Packed, if the stream is
// cut as a whole: only the stream is padded. Rectangle: the longest sample is padded to a multiple of u. At most T
// recorded rows.
struct MegatronPadding {
  bool packed = true;                   // cu_seqlens are passed. Else a rectangle.
  bool per_sequence_balancing = false;  // (use_per_sequence_balancing)
  // (seq_length) Length of the pack or the rectangle; the smallest possible if not set.
  std::optional<int64_t> sequence_length;
};

// verl (Megatron backend): verl/models/mcore/util.py and verl/utils/megatron/router_replay_utils.py.
//
// With a = tp · cp · (2 if zigzag and cp > 1), the last sample taking what the stream needs:
//   packed (preprocess_thd_engine, preprocess_packed_seqs): each sample to a multiple of a, with FP8 of lcm(16, a); the
//     stream to a multiple of a · 128 with FP8, of the bucket, and to cp · min_local_rows;
//   rectangle (preprocess_bshd_engine): the longest sample to a multiple of a; with FP8 to one of lcm(16, a) such that
//     B · length is a multiple of tp · cp · 128.
// Recorded rows must be T or T - 1.
struct VerlPadding {
  bool packed = true;                     // (use_remove_padding) THD, else a rectangle.
  bool contiguous = false;                // (cp_layout) Else zigzag. Packed only.
  bool fp8 = false;                       // (fp8 recipe e4m3 or hybrid)
  std::optional<int64_t> min_local_rows;  // (csa_window_size) With `contiguous`: rows that each CP rank has at least.
  std::optional<int64_t> length_bucket;   // (pad_to_length_bucket) Packed only.
  std::optional<int64_t> forced_max_length;  // (forced_max_seqlen) Rectangle only.
  std::optional<int32_t> local_cp_size;      // Dynamic CP: the CP size of this micro-batch.
};

// slime: slime/backends/megatron_utils (get_batch, cp_utils.py).
//
// Packed. Zigzag: each sample is padded to a multiple of 2 · cp (not at all for cp = 1), the rows of a rank to a
// multiple of tp · M. allgather_cp: no padding per sample, the stream is padded to a multiple of cp · tp · M. The
// padding of the stream is a document of its own. Recorded rows must be T - 1.
struct SlimePadding {
  int64_t pad_size_multiplier = 128;  // M (--data-pad-size-multiplier)
  bool allgather_cp = false;          // (--allgather-cp) The stream is cut into equal contiguous chunks.
};

// miles: miles/backends/training_utils (get_batch, cp_utils.py, replay_data.py).
//
// Packed: as slime. Rectangle: MilesMaxLength, to a multiple of 2 · cp for zigzag; with allgather_cp that length S, of
// which rank r keeps S / cp contiguous rows. Recorded rows must be T - 1.
struct MilesPadding {
  bool packed = true;                    // (qkv_format thd) Else a rectangle (bshd).
  int64_t pad_size_multiplier = 128;     // M (--data-pad-size-multiplier)
  bool allgather_cp = false;             // (--allgather-cp)
  std::vector<int64_t> compress_ratios;  // Of the model's attention; rectangle only. 0: none.
};

// SkyRL: skyrl/backends/skyrl_train/distributed/megatron/token_metadata.py.
//
// Each sample (packed), or the longest one, to a multiple of the alignments below. Samples come in a left-padded
// rectangle; the attention mask strips that before packing. At most T recorded rows.
struct SkyRlPadding {
  enum class Release : uint8_t {
    kMain = 0,
    kPullRequest1327 = 1,  // The superseded rectangle: aligned for CP too.
  };
  bool packed = true;  // (remove_microbatch_padding) Else a rectangle.
  bool fp8 = false;
  Release release = Release::kMain;
};

// NeMo-RL: nemo_rl/models/megatron/data.py.
//
// Packed (_pack_sequences_for_megatron): samples by `individual`; the last sample takes what the pack needs. Rectangle:
// the longest sample by make_sequence_length_divisible_by. At most T recorded rows.
struct NemoRlPadding {
  bool packed = true;  // (sequence_packing) Else a rectangle.
  int64_t make_sequence_length_divisible_by = 1;
  Fp8Recipe fp8_recipe = Fp8Recipe::kNone;
  bool hybridep = false;
  int32_t pipeline_size = 1;
  // Rows of the longest pack of the batch, over all its micro-batches; 0: those of the pack itself. Used with
  // pipeline_size > 1.
  int64_t max_packed_length_in_batch = 0;
};

// ms-swift (Megatron-SWIFT): swift/megatron/utils/utils.py get_padding_to, swift/template/base.py.
//
// Packed: each sample to a multiple of 2 · cp (not at all for cp = 1), then documents of 2 · cp rows (of one row for
// cp = 1) up to a multiple of padding_to. Rectangle: the longest sample to a multiple of padding_to, then of 2 · cp.
// Recorded rows must be T or T - 1. INVALID_ARGUMENT (kShape) where the documents end below the total.
struct MsSwiftPadding {
  enum class Release : uint8_t {
    kMain = 0,
    // Before pull request 9722: an FP8 format multiplies by 8, at least 16; mxfp8 is no case of its own.
    kBefore9722 = 1,
  };
  bool padding_free = true;  // THD, else a rectangle.
  Fp8Recipe fp8_recipe = Fp8Recipe::kNone;
  std::string fp8_format;        // "", "e4m3", …
  std::string fp4_format;        // "", "e2m1", …
  bool fused_attention = false;  // (attention_backend fused)
  Release release = Release::kMain;
  // The rule of pull request 8393, which was never merged: with moe_flex_dispatcher_backend = hybridep everything is
  // padded to seq_length, else to max_length, and the other rules do not apply. deepep changes nothing.
  bool pull_request_8393 = false;
  std::string dispatcher;  // (moe_flex_dispatcher_backend)
  std::optional<int64_t> seq_length;
  std::optional<int64_t> max_length;
};

// prime-rl: src/prime_rl/trainer/batch.py pad_micro_batch, shard_for_cp.
//
// Packed, without padding per sample; the last sample grows until the stream is a multiple of pad_to_multiple_of. Equal
// contiguous chunks, which cp must divide. At most T recorded rows.
struct PrimeRlPadding {
  int64_t pad_to_multiple_of = 1;
};

using PaddingPolicy = std::variant<MegatronPadding, VerlPadding, SlimePadding, MilesPadding, SkyRlPadding,
                                   NemoRlPadding, MsSwiftPadding, PrimeRlPadding>;

struct PaddingPrediction {
  std::string policy;  // "verl", …
  // The micro-batch as the framework passes it to the model. A BSHD layout is in Megatron's row order, sequence-major,
  // even if the framework flattens its routes in another order: then that is a hazard.
  MicroBatchLayout layout;
  std::string rule;                  // The rule of the padding, in words and numbers.
  std::vector<std::string> hazards;  // Faults of the framework itself with this micro-batch, in words.
};

// Padded lengths, boundaries and total of `batch` under a policy. INVALID_ARGUMENT: kField for an option or size that
// is out of range (field "padding.<name>"), kShape if the framework rejects the batch before it pads it. A layout that
// CP or SP cannot divide is returned with a hazard: BuildRowMap rejects it.
absl::StatusOr<PaddingPrediction> PredictPadding(const UnpaddedBatch& batch, const PaddingPolicy& policy);

// The first difference between a prediction and the layout that the trainer passed, in words with both numbers and the
// rule; nothing if they agree. Compares format, sizes, partition (with cp > 1), each sample's padded rows, the padding
// behind the last sample, and the total, in this order.
std::optional<std::string> FirstDifference(const PaddingPrediction& predicted, const MicroBatchLayout& passed);

// Numbers of the frameworks themselves, from which the rules above are made.

// miles: length S of the rectangle before CP: the longest sample to a multiple of max(tp · M, largest ratio · cp · (2
// if cp > 1)).
int64_t MilesMaxLength(const UnpaddedBatch& batch, const MilesPadding& options);

// SkyRL: the multiple to which a sample's length is padded. get_packed_seq_align_size: a = tp · (2 · cp if cp > 1),
// with FP8 lcm(a, 16 · cp). get_unpacked_seq_align_size: tp, with FP8 lcm(tp, 16).
int64_t SkyRlPackedAlignment(const UnpaddedBatch& batch, bool fp8);
int64_t SkyRlUnpackedAlignment(const UnpaddedBatch& batch, bool fp8);
// Whether a value of the `fp8` option turns FP8 on (is_fp8_enabled): not "", none, null, no, false, 0, in any case.
bool SkyRlFp8Enabled(absl::string_view value);

// NeMo-RL: _get_pack_sequence_parameters_for_megatron.
struct NemoRlMultiples {
  int64_t individual = 1;            // For each sample.
  int64_t packed = 1;                // For the pack: divisor · (2 · cp if cp > 1) · (tp under SP).
  std::optional<int64_t> packed_to;  // With a pipeline: the length of every pack.
};
// The divisor is the largest of 128 (blockwise), 32 (mxfp8), 16 (other FP8) and 128 (HybridEP).
// INVALID_ARGUMENT (kShape) unless make_sequence_length_divisible_by is a multiple of (2 · cp if cp > 1) · (tp under
// SP).
absl::StatusOr<NemoRlMultiples> GetNemoRlMultiples(const UnpaddedBatch& batch, const NemoRlPadding& options);

// ms-swift: get_padding_to, what total rows are padded to a multiple of; nothing where no rule holds. In this order:
//   tp under SP, times cp (not 2 · cp), times 128 (blockwise), 32 (mxfp8) or 16 (any FP8 or FP4 format); fused
//   attention: at least 64 times the product of the first two; then hybridep.
std::optional<int64_t> MsSwiftPaddingTo(const UnpaddedBatch& batch, const MsSwiftPadding& options);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_PADDING_H_
