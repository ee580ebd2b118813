// The JSON names of the fields of the layout's structs, and their allowed values. All code that reads, checks or writes
// these structs as JSON uses this list.
//
// Each struct has a function Fields(field, of), which calls
//   field("name", of.member)            for most fields; the values of an enum are those of its ChoicesOf
//   field("name", of.member, Bounds)    for a number, or a list of numbers, with bounds that are checked before use
//   field("name", of.member, Choices)   for a field that is one of these named values
// `field` is an object that reads, checks or writes fields, such as FieldReader or FieldWriter. The meaning of a field
// is explained in its struct; rrt_plan_new in routing_replay/trainer/capi.h lists all fields for users.
#ifndef TRAINER_PLUGIN_LAYOUT_FIELDS_H_
#define TRAINER_PLUGIN_LAYOUT_FIELDS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "routing_replay/trainer/layers.h"
#include "routing_replay/trainer/padding.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/trainer/rows.h"

namespace routing_replay::trainer {

struct Bounds {
  int64_t least;
  int64_t most;
};
inline constexpr Bounds kRowBounds{1, kMaxStreamRows};

template <typename Value>
using Choices = std::vector<std::pair<const char*, Value>>;

// A flag that frameworks also accept as a text: the name of a format ("e4m3") means true, "none" and the like false.
struct FlagOrFormat {};

inline const Choices<TokenFormat>& ChoicesOf(TokenFormat) {
  static const auto& choices = *new Choices<TokenFormat>{{"THD", TokenFormat::kThd}, {"BSHD", TokenFormat::kBshd}};
  return choices;
}
inline const Choices<Partition>& ChoicesOf(Partition) {
  static const auto& choices = *new Choices<Partition>{{"zigzag_per_document", Partition::kZigzagPerDocument},
                                                       {"zigzag_per_sequence", Partition::kZigzagPerSequence},
                                                       {"contiguous", Partition::kContiguous},
                                                       {"contiguous_per_sequence", Partition::kContiguousPerSequence}};
  return choices;
}
inline const Choices<RowOrder>& ChoicesOf(RowOrder) {
  static const auto& choices =
      *new Choices<RowOrder>{{"sequence_major", RowOrder::kSequenceMajor}, {"batch_major", RowOrder::kBatchMajor}};
  return choices;
}
inline const Choices<SpSlice>& ChoicesOf(SpSlice) {
  static const auto& choices =
      *new Choices<SpSlice>{{"after_flatten", SpSlice::kAfterFlatten}, {"before_flatten", SpSlice::kBeforeFlatten}};
  return choices;
}
inline const Choices<RowState>& ChoicesOf(RowState) {
  static const auto& choices = *new Choices<RowState>{{"replayed", RowState::kReplayed},
                                                      {"unrecorded", RowState::kUnrecorded},
                                                      {"pad", RowState::kPad},
                                                      {"live", RowState::kLive}};
  return choices;
}

template <typename Enum>
absl::string_view NameOf(Enum value) {
  for (const auto& [name, choice] : ChoicesOf(value)) {
    if (choice == value) return name;
  }
  return "";
}

// "split", whose num_layers is not a field, because it comes from the geometry.
template <typename Field>
void Fields(Field&& field, LayerSplit& of) {
  field("pipeline_size", of.pipeline_size);
  field("virtual_stages", of.virtual_stages);
  field("first_stage_layers", of.first_stage_layers);
  field("last_stage_layers", of.last_stage_layers);
  field("account_for_embedding", of.account_for_embedding);
  field("account_for_loss", of.account_for_loss);
  field("mtp_num_layers", of.mtp_num_layers);
  field("layout", of.layout);
  field("hybrid_pattern", of.hybrid);
}

// An entry of "rank.model", one per chunk.
template <typename Field>
void Fields(Field&& field, LiveChunk& of) {
  field("layer_numbers", of.layer_numbers);
}

// "rank", except its field model.
template <typename Field>
void Fields(Field&& field, PlanRank& of) {
  field("pp", of.pp_rank);
  field("chunk", of.chunk);
  field("cp", of.rows.cp_rank);
  field("tp", of.rows.tp_rank);
}

// "micro_batch": the fields that every layout has, then those of its format.
template <typename Field>
void Fields(Field&& field, MicroBatchLayout& of) {
  field("format", of.format);
  field("partition", of.partition);
  field("cp_size", of.cp_size);
  field("tp_size", of.tp_size);
  field("sequence_parallel", of.sequence_parallel);
  field("tokens_per_sample", of.tokens_per_sample);
  field("target_rows", of.target_rows);
}
template <typename Field>
void ShapeFields(Field&& field, MicroBatchLayout& of) {
  if (of.format == TokenFormat::kThd) {
    field("cu_seqlens_padded", of.cu_seqlens_padded);
    field("total_rows", of.total_rows);
  } else {
    field("batch_size", of.batch_size);
    field("padded_length", of.padded_length);
    field("row_order", of.row_order);
    field("sp_slice", of.sp_slice);
  }
}

// An entry of "micro_batch.sequences", except its fields sample, recorded_rows and pieces.
template <typename Field>
void Fields(Field&& field, SequenceShape& of) {
  field("tokens", of.tokens);
  field("first_row", of.first_row);
  field("live", of.live);
}

// An entry of "micro_batch.sequences[i].pieces", except its field rows.
template <typename Field>
void Fields(Field&& field, SequencePiece& of) {
  field("sample", of.sample);
  field("tokens", of.tokens);
  field("start", of.start);
  field("live", of.live);
}

// A run of "row_map".
template <typename Field>
void Fields(Field&& field, RowRun& of) {
  field("local_row", of.local_row);
  field("stride", of.stride);
  field("count", of.count);
  field("sequence", of.sequence);
  field("row", of.row);
  field("state", of.state);
}

// "micro_batch.padding": the name of each policy, and its options.

inline const char* PolicyName(const MegatronPadding&) { return "megatron"; }
template <typename Field>
void Fields(Field&&, MegatronPadding&) {}

inline const char* PolicyName(const VerlPadding&) { return "verl"; }
template <typename Field>
void Fields(Field&& field, VerlPadding& of) {
  field("use_remove_padding", of.packed);
  field("cp_layout", of.contiguous, Choices<bool>{{"zigzag", false}, {"contiguous", true}});
  field("fp8", of.fp8, FlagOrFormat());
  field("csa_window_size", of.min_local_rows, kRowBounds);
  field("pad_to_length_bucket", of.length_bucket, kRowBounds);
  field("forced_max_seqlen", of.forced_max_length, kRowBounds);
}

inline const char* PolicyName(const SlimePadding&) { return "slime"; }
template <typename Field>
void Fields(Field&& field, SlimePadding& of) {
  field("data_pad_size_multiplier", of.pad_size_multiplier, kRowBounds);
  field("allgather_cp", of.allgather_cp);
}

inline const char* PolicyName(const MilesPadding&) { return "miles"; }
template <typename Field>
void Fields(Field&& field, MilesPadding& of) {
  field("qkv_format", of.packed, Choices<bool>{{"thd", true}, {"bshd", false}});
  field("data_pad_size_multiplier", of.pad_size_multiplier, kRowBounds);
  field("allgather_cp", of.allgather_cp);
  field("compress_ratios", of.compress_ratios, Bounds{0, kMaxStreamRows});
}

inline const char* PolicyName(const SkyRlPadding&) { return "skyrl"; }
template <typename Field>
void Fields(Field&& field, SkyRlPadding& of) {
  using Release = SkyRlPadding::Release;
  field("remove_microbatch_padding", of.packed);
  field("fp8", of.fp8, FlagOrFormat());
  field("release", of.release, Choices<Release>{{"main", Release::kMain}, {"pr1327", Release::kPullRequest1327}});
}

inline const char* PolicyName(const NemoRlPadding&) { return "nemo_rl"; }
template <typename Field>
void Fields(Field&& field, NemoRlPadding& of) {
  field("sequence_packing", of.packed);
  field("make_sequence_length_divisible_by", of.make_sequence_length_divisible_by, kRowBounds);
  field("fp8_recipe", of.fp8_recipe,
        Choices<Fp8Recipe>{{"", Fp8Recipe::kNone},
                           {"delayed", Fp8Recipe::kDelayed},
                           {"tensorwise", Fp8Recipe::kDelayed},
                           {"blockwise", Fp8Recipe::kBlockwise},
                           {"mxfp8", Fp8Recipe::kMxfp8}});
  field("hybridep", of.hybridep);
  field("pp", of.pipeline_size, kRowBounds);
  field("max_packed_length_in_batch", of.max_packed_length_in_batch, Bounds{0, kMaxStreamRows});
}

inline const char* PolicyName(const MsSwiftPadding&) { return "ms_swift"; }
template <typename Field>
void Fields(Field&& field, MsSwiftPadding& of) {
  using Release = MsSwiftPadding::Release;
  field("padding_free", of.padding_free);
  // Reject unknown names, because a misspelt name would silently turn FP8 off.
  field("fp8_recipe", of.fp8_recipe,
        Choices<Fp8Recipe>{{"", Fp8Recipe::kNone},
                           {"blockwise", Fp8Recipe::kBlockwise},
                           {"mxfp8", Fp8Recipe::kMxfp8},
                           {"delayed", Fp8Recipe::kDelayed},
                           {"tensorwise", Fp8Recipe::kDelayed},
                           {"custom", Fp8Recipe::kDelayed}});
  field("fp8_format", of.fp8_format);
  field("fp4_format", of.fp4_format);
  field("attention_backend", of.fused_attention,
        Choices<bool>{
            {"", false}, {"auto", false}, {"flash", false}, {"fused", true}, {"unfused", false}, {"local", false}});
  field("release", of.release, Choices<Release>{{"main", Release::kMain}, {"before_9722", Release::kBefore9722}});
  field("moe_flex_dispatcher_backend", of.dispatcher);
  field("pull_request_8393", of.pull_request_8393);
  field("seq_length", of.seq_length, kRowBounds);
  field("max_length", of.max_length, kRowBounds);
}

inline const char* PolicyName(const PrimeRlPadding&) { return "prime_rl"; }
template <typename Field>
void Fields(Field&& field, PrimeRlPadding& of) {
  field("pad_to_multiple_of", of.pad_to_multiple_of, kRowBounds);
}

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_FIELDS_H_
