#include "routing_replay/trainer/megatron_layers.h"

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/json/json_object.h"
#include "proto/json/python_json.h"
#include "proto/wire/model_config/config_reader.h"
#include "trainer_plugin/layout/layout_json.h"
#include "trainer_plugin/layout/with_field.h"

namespace routing_replay::trainer {
namespace {

using nlohmann::json;

constexpr const char* kLayout[] = {"pipeline_model_parallel_layout"};
constexpr const char* kHybrid[] = {"hybrid_layer_pattern", "hybrid_override_pattern"};
constexpr const char* kVirtual[] = {"virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"};

class SplitReader {
 public:
  explicit SplitReader(const json& config) : reader_(config, "", sources_) {}

  absl::StatusOr<LayerSplit> Read(int32_t num_layers) {
    LayerSplit split{.num_layers = num_layers};
    split.pipeline_size = Int({"pipeline_model_parallel_size"}).value_or(1);
    split.virtual_stages = Int(kVirtual);
    split.first_stage_layers = Int({"num_layers_in_first_pipeline_stage", "decoder_first_pipeline_num_layers"});
    split.last_stage_layers = Int({"num_layers_in_last_pipeline_stage", "decoder_last_pipeline_num_layers"});
    split.account_for_embedding = Flag("account_for_embedding_in_pipeline_split");
    split.account_for_loss = Flag("account_for_loss_in_pipeline_split");
    split.mtp_num_layers = Int({"mtp_num_layers"}).value_or(0);
    ReadStages(split);
    if (!split.virtual_stages && !split.layout && reader_.Has("num_layers_per_virtual_pipeline_stage")) {
      reader_.Fail("num_layers_per_virtual_pipeline_stage", absl::StrCat("leaves V open: give ", kVirtual[0]));
    }
    if (!reader_.status().ok()) return reader_.status();
    return split;
  }

 private:
  std::optional<int32_t> Int(Keys keys) {
    const auto value = reader_.Int(keys.front(), keys);
    if (!value) return std::nullopt;
    if (*value < INT32_MIN || *value > INT32_MAX) {
      reader_.Fail(keys.front(), absl::StrCat(*value, " is out of range"));
      return std::nullopt;
    }
    return static_cast<int32_t>(*value);
  }

  bool Flag(const char* key) {
    const char* const keys[] = {key};
    return reader_.Flag(key, keys).value_or(false);
  }

  void ReadStages(LayerSplit& split) {
    if (const json* written = reader_.Find(kLayout[0], kLayout)) {
      auto layout = PipelineLayoutFromJson(*written);
      reader_.Update(WithField(layout.status(), kLayout[0]));
      if (layout.ok()) split.layout = *std::move(layout);
    }
    if (const auto text = reader_.Text(kHybrid[0], kHybrid)) {
      auto hybrid = ParseHybridPattern(*text);
      reader_.Update(WithField(hybrid.status(), kHybrid[0]));
      if (hybrid.ok()) split.hybrid = *std::move(hybrid);
    }
  }

  std::map<std::string, std::string> sources_;
  ConfigReader reader_;
};

}  // namespace

absl::StatusOr<MegatronLayers> LayersFromMegatron(absl::string_view text) {
  auto model = ModelConfigFromMegatron(text);
  if (!model.ok()) return model.status();
  const auto root = ParseJson(QuoteNonFinite(text), "config");
  if (!root.ok()) return root.status();
  auto split = SplitReader(*root).Read(model->geometry.num_layers());
  if (!split.ok()) return split.status();
  return MegatronLayers{*std::move(model), *std::move(split)};
}

}  // namespace routing_replay::trainer
