// A model's routing and the split of its layers from one Megatron-Core configuration.
#ifndef ROUTING_REPLAY_TRAINER_MEGATRON_LAYERS_H_
#define ROUTING_REPLAY_TRAINER_MEGATRON_LAYERS_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "routing_replay/trainer/layers.h"
#include "routing_replay/wire/model_config.h"

namespace routing_replay::trainer {

struct MegatronLayers {
  ModelConfig model;
  LayerSplit split;
};

// From Megatron-Core's TransformerConfig as a JSON object. What ModelConfigFromMegatron reads gives the model; the
// split has pipeline_model_parallel_size, virtual_pipeline_model_parallel_size (or its argument
// num_virtual_stages_per_pipeline_rank), num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage (or
// decoder_first_pipeline_num_layers, decoder_last_pipeline_num_layers), account_for_embedding_in_pipeline_split,
// account_for_loss_in_pipeline_split, pipeline_model_parallel_layout as text or list, hybrid_layer_pattern (or
// hybrid_override_pattern) and mtp_num_layers. Others are not looked at; null is absent.
// INVALID_ARGUMENT (kField) naming the key. num_layers_per_virtual_pipeline_stage alone is refused: V depends on it by
// way of other arguments. Whether the split is one is for LayerTable::Create.
absl::StatusOr<MegatronLayers> LayersFromMegatron(absl::string_view json);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_MEGATRON_LAYERS_H_
