// How training frameworks pad a micro-batch, and checks of the layout that a trainer really passed. For the rule of
// verl, for example, see VerlPadding here and "verl" in layout/padding.cc.
//
// A policy describes the padding of one framework. Its options are below, with the framework's own names (in
// parentheses where our name differs); its arithmetic is in layout/padding.cc. Use a policy to preallocate buffers and
// to check a layout; the layout that the trainer really passed always wins. Below, B is the number of sequences, T the
// tokens of one, cp and tp the sizes of context and tensor parallelism, and SP sequence parallelism.
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

// A micro-batch before padding: the lengths of its B sequences, and the parallel sizes of the trainer.
struct UnpaddedBatch {
  std::vector<SequenceShape> sequences;  // [B], B >= 1
  int32_t cp_size = 1;
  int32_t tp_size = 1;
  bool sequence_parallel = false;
};

// FP8 recipes by Megatron's names; kDelayed stands for all other recipes.
enum class Fp8Recipe : uint8_t { kNone = 0, kDelayed = 1, kBlockwise = 2, kMxfp8 = 3 };

// Megatron-LM's own training: megatron/core/utils.py get_batch_on_this_cp_rank.
//
// Always packed: each document is padded to a multiple of a · b, where a is 2 · cp if cp > 1, else 1, and b is tp under
// SP, else 1. The pack gets no further padding. A sample may have at most T recorded rows.
struct MegatronPadding {};

// verl (Megatron backend): verl/models/mcore/util.py and verl/utils/megatron/router_replay_utils.py.
//
// Let a = tp · cp · (2 if zigzag and cp > 1).
//   Packed (preprocess_thd_engine, preprocess_packed_seqs): each sample is padded to a multiple of a (with FP8: of
//     lcm(16, a)). Then padding is added to the last sample: the length of the stream is rounded up to a multiple of a
//     (with FP8: of a · 128) and of the bucket, and then raised to cp · min_local_rows if it is less.
//   Rectangle (preprocess_bshd_engine): the length of the longest sample (or forced_max_length) is rounded up to a
//     multiple of a; with FP8 to a multiple of lcm(16, a) such that B · length is a multiple of tp · cp · 128.
// Recorded rows must be T or T - 1.
struct VerlPadding {
  bool packed = true;                     // (use_remove_padding) True: packed (THD). False: a rectangle.
  bool contiguous = false;                // (cp_layout) True: contiguous. False: zigzag. Packed only.
  bool fp8 = false;                       // (fp8 recipe e4m3 or hybrid)
  std::optional<int64_t> min_local_rows;  // (csa_window_size) With `contiguous`: rows that each CP rank has at least.
  std::optional<int64_t> length_bucket;   // (pad_to_length_bucket) Packed only.
  std::optional<int64_t> forced_max_length;  // (forced_max_seqlen) Rectangle only.
};

// slime: slime/backends/megatron_utils (get_batch, cp_utils.py).
//
// Always packed. Zigzag: each sample is padded to a multiple of 2 · cp (not at all if cp = 1), and the rows of a rank
// to a multiple of tp · M. allgather_cp: samples are not padded, and the stream is padded to a multiple of cp · tp · M.
// The padding of the stream is a document of its own. A sample must have T - 1 recorded rows.
struct SlimePadding {
  int64_t pad_size_multiplier = 128;  // M (--data-pad-size-multiplier)
  bool allgather_cp = false;          // (--allgather-cp) The stream is cut into equal contiguous chunks.
};

// miles: miles/backends/training_utils (get_batch, cp_utils.py, replay_data.py).
//
// Packed: as slime. Rectangle: the length is S = MilesMaxLength, for zigzag rounded up to a multiple of 2 · cp; with
// allgather_cp, rank r keeps S / cp contiguous rows. A sample must have T - 1 recorded rows.
struct MilesPadding {
  bool packed = true;                 // (qkv_format) True: packed (thd). False: a rectangle (bshd).
  int64_t pad_size_multiplier = 128;  // M (--data-pad-size-multiplier)
  bool allgather_cp = false;          // (--allgather-cp)
  // Compression ratios of the model's attention layers; rectangle only. 0: no compression.
  std::vector<int64_t> compress_ratios;
};

// SkyRL: skyrl/backends/skyrl_train/distributed/megatron/token_metadata.py.
//
// Packed: each sample is padded to a multiple of SkyRlPackedAlignment. Rectangle: the longest sample is padded to a
// multiple of SkyRlUnpackedAlignment. Samples arrive in a left-padded rectangle, whose padding is removed with the
// attention mask before packing. A sample may have at most T recorded rows.
struct SkyRlPadding {
  enum class Release : uint8_t {
    kMain = 0,
    kPullRequest1327 = 1,  // The older rule for rectangles, which also aligns them for CP.
  };
  bool packed = true;  // (remove_microbatch_padding) True: packed. False: a rectangle.
  bool fp8 = false;
  Release release = Release::kMain;
};

// NeMo-RL: nemo_rl/models/megatron/data.py.
//
// Packed (_pack_sequences_for_megatron): each sample is padded to a multiple of NemoRlMultiples::individual, and the
// last sample also gets the padding of the pack. Rectangle: the longest sample is padded to a multiple of
// make_sequence_length_divisible_by. A sample may have at most T recorded rows.
struct NemoRlPadding {
  bool packed = true;  // (sequence_packing) True: packed. False: a rectangle.
  int64_t make_sequence_length_divisible_by = 1;
  Fp8Recipe fp8_recipe = Fp8Recipe::kNone;
  bool hybridep = false;
  int32_t pipeline_size = 1;
  // Rows of the longest pack over all micro-batches of the batch, used with pipeline_size > 1. 0: this pack is the
  // longest.
  int64_t max_packed_length_in_batch = 0;
};

// ms-swift (Megatron-SWIFT): swift/megatron/utils/utils.py get_padding_to, swift/template/base.py.
//
// Packed: each sample is padded to a multiple of 2 · cp (not at all if cp = 1). Then padding documents of 2 · cp rows
// (of one row if cp = 1) follow until the stream is a multiple of MsSwiftPaddingTo. Rectangle: the longest sample is
// padded to a multiple of MsSwiftPaddingTo, and then of 2 · cp. Recorded rows must be T or T - 1. INVALID_ARGUMENT
// (kShape) if the documents end before the end of the stream.
struct MsSwiftPadding {
  enum class Release : uint8_t {
    kMain = 0,
    // Before pull request 9722: an FP8 format gives 8 times the multiple (at least 16), and mxfp8 has no rule of its
    // own.
    kBefore9722 = 1,
  };
  bool padding_free = true;  // True: packed (THD). False: a rectangle.
  Fp8Recipe fp8_recipe = Fp8Recipe::kNone;
  std::string fp8_format;        // "", "e4m3", …
  std::string fp4_format;        // "", "e2m1", …
  bool fused_attention = false;  // (attention_backend fused)
  Release release = Release::kMain;
  // The rule of pull request 8393, which was never merged. With moe_flex_dispatcher_backend = hybridep everything is
  // padded to seq_length, or to max_length if seq_length is not set, and the other rules do not apply. With deepep
  // nothing changes.
  bool pull_request_8393 = false;
  std::string dispatcher;  // (moe_flex_dispatcher_backend)
  std::optional<int64_t> seq_length;
  std::optional<int64_t> max_length;
};

// prime-rl: src/prime_rl/trainer/batch.py pad_micro_batch, shard_for_cp.
//
// Always packed; samples are not padded, but the last one grows until the stream is a multiple of pad_to_multiple_of.
// The stream is cut into cp equal contiguous chunks, so cp must divide it. A sample may have at most T recorded rows.
struct PrimeRlPadding {
  int64_t pad_to_multiple_of = 1;
};

using PaddingPolicy = std::variant<MegatronPadding, VerlPadding, SlimePadding, MilesPadding, SkyRlPadding,
                                   NemoRlPadding, MsSwiftPadding, PrimeRlPadding>;

struct PaddingPrediction {
  std::string policy;  // "verl", …
  // The micro-batch as the framework passes it to the model. A BSHD layout is in Megatron's row order (sequence-major).
  MicroBatchLayout layout;
};

// Computes the padded lengths, boundaries and total of `batch` under a policy. INVALID_ARGUMENT: kField for an option
// or size that is out of range (field "padding.<name>"), kShape if the framework rejects the batch before it pads it. A
// layout that cannot be divided over CP or SP is returned, and BuildRowMap rejects it.
absl::StatusOr<PaddingPrediction> PredictPadding(const UnpaddedBatch& batch, const PaddingPolicy& policy);

// Names the first field in which a prediction and the layout that the trainer passed differ, with both values; nothing
// if they agree.
std::optional<std::string> FirstDifference(const PaddingPrediction& predicted, const MicroBatchLayout& passed);

// Numbers that the frameworks compute themselves and that the rules above use.

// miles: the length S of the rectangle before CP. It is the longest sample, rounded up to a multiple of max(tp · M,
// largest ratio · cp · (2 if cp > 1)).
int64_t MilesMaxLength(const UnpaddedBatch& batch, const MilesPadding& options);

// SkyRL: return the multiple to which a sample's length is padded.
//   packed (get_packed_seq_align_size): a = tp · (2 · cp if cp > 1); with FP8 lcm(a, 16 · cp)
//   rectangle (get_unpacked_seq_align_size): tp; with FP8 lcm(tp, 16)
int64_t SkyRlPackedAlignment(const UnpaddedBatch& batch, bool fp8);
int64_t SkyRlUnpackedAlignment(const UnpaddedBatch& batch, bool fp8);
// Returns true if this value of the `fp8` option turns FP8 on (is_fp8_enabled): any value except "", none, null, no,
// false and 0 (case is ignored).
bool SkyRlFp8Enabled(absl::string_view value);

// NeMo-RL: _get_pack_sequence_parameters_for_megatron.
struct NemoRlMultiples {
  int64_t individual = 1;            // The multiple for each sample.
  int64_t packed = 1;                // The multiple for the pack: divisor · (2 · cp if cp > 1) · (tp under SP).
  std::optional<int64_t> packed_to;  // With pipeline parallelism: the length of every pack.
};
// The divisor is 128 (blockwise FP8, or HybridEP), 32 (mxfp8) or 16 (other FP8), the largest that applies. If none
// applies, `packed` is 1.
// INVALID_ARGUMENT (kShape) unless make_sequence_length_divisible_by is a multiple of (2 · cp if cp > 1) · (tp under
// SP).
absl::StatusOr<NemoRlMultiples> GetNemoRlMultiples(const UnpaddedBatch& batch, const NemoRlPadding& options);

// ms-swift: returns the multiple to which the total rows are padded (get_padding_to); nothing if no rule applies.
//   With p = (tp under SP) · cp (not 2 · cp), the multiple is p, or p · 128 (blockwise), p · 32 (mxfp8) or p · 16 (any
//   other FP8 or FP4 format). With fused attention it is at least p · 64. Under pull request 8393, the length of
//   hybridep replaces all of this.
std::optional<int64_t> MsSwiftPaddingTo(const UnpaddedBatch& batch, const MsSwiftPadding& options);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_PADDING_H_
