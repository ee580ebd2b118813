// Padding of Megatron-LM's own training: megatron/core/utils.py get_batch_on_this_cp_rank,
// megatron/training/datasets/sft_dataset.py.
#ifndef ROUTING_REPLAY_TRAINER_PADDING_MEGATRON_H_
#define ROUTING_REPLAY_TRAINER_PADDING_MEGATRON_H_

#include "routing_replay/trainer/padding/prediction.h"

namespace routing_replay::trainer {

struct MegatronPadding {
  bool packed = true;                      // cu_seqlens are passed. Else a rectangle.
  bool per_sequence_balancing = false;     // (use_per_sequence_balancing)
  bool hybrid_cp = false;                  // (hybrid_context_parallel) cp_size is that of the sample's group.
  std::optional<int32_t> dp_cp_size;       // With hybrid_cp: ranks of the DP x CP group, from which groups are made.
  std::optional<int64_t> sequence_length;  // (seq_length) Of the pack or the rectangle; the least that fits if not set.
};

// Which partition get_batch_on_this_cp_rank makes: per document with cu_seqlens, else per sequence; per sequence too
// with use_per_sequence_balancing and with hybrid CP, there on the sample's own group. The kind of CP communication
// (p2p, all_gather, a2a, a2a+p2p with hierarchical groups) changes none of this.
Partition MegatronPartition(bool cu_seqlens, bool per_sequence_balancing, bool hybrid_cp);

// Packed: each document to a multiple of u = (2 · cp if cp > 1) · (tp under SP), where documents are cut, the last one
// stretched to the end of the pack (SFTDataset, which itself pads by 2 · cp); where the stream is cut as a whole only
// the stream is padded. Rectangle: the longest sample to a multiple of u. At most T recorded rows.
//
// Hybrid CP gives each sample a group of its own, so that a micro-batch has one: INVALID_ARGUMENT (kShape) for several.
// Any group must be able to hold it: it is padded to a multiple of 2 · dp_cp_size · (tp under SP)
// (GPTDatasetConfig's sequence_length rule), or of u where dp_cp_size is not set.
absl::StatusOr<PaddingPrediction> PredictMegatron(const UnpaddedBatch& batch, const MegatronPadding& options);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_PADDING_MEGATRON_H_
