#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/json/json_object.h"
#include "proto/json/python_json.h"
#include "proto/wire/model_config/config_reader.h"
#include "proto/wire/model_config/families.h"
#include "proto/wire/model_config/invalid_config.h"
#include "proto/wire/model_config/layer_pattern.h"
#include "proto/wire/model_config/router_facts.h"
#include "routing_replay/wire/model_config.h"

namespace routing_replay {
namespace {

using nlohmann::json;

constexpr const char* kExperts[] = {"n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"};
constexpr const char* kTopK[] = {"num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts",
                                 "moe_top_k",           "experts_per_token"};
constexpr const char* kMtp[] = {"num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules",
                                "mtp_num_hidden_layers"};

absl::Status NoRoutedExperts(absl::string_view why) {
  return InvalidConfig("config", absl::StrCat("no routed experts: ", why));
}

// A configuration object and those around it, outermost first.
struct Level {
  const json* config;
  std::string path;
};

std::vector<Level> LevelsOf(const json& root) {
  constexpr std::array kNested = {"thinker_config", "text_config", "language_config", "llm_config"};
  std::vector<Level> levels = {{&root, ""}};
  for (bool found = true; found;) {
    found = false;
    const Level outer = levels.back();
    for (const char* key : kNested) {
      const auto inner = outer.config->find(key);
      if (inner == outer.config->end() || !inner->is_object() || found) continue;
      levels.push_back({&*inner, outer.path.empty() ? key : absl::StrCat(outer.path, ".", key)});
      found = true;
    }
  }
  return levels;
}

std::string TypeOf(const json& config) {
  const auto type = config.find("model_type");
  return type != config.end() && type->is_string() ? type->get<std::string>() : "";
}

// Everything that is read of one model.
class HuggingFaceModel {
 public:
  explicit HuggingFaceModel(const json& root)
      : levels_(LevelsOf(root)), reader_(*levels_.back().config, levels_.back().path, routing_.sources) {
    for (auto level = levels_.rbegin(); level != levels_.rend() && family_ == nullptr; ++level) {
      family_ = FindFamily(TypeOf(*level->config));
      if (family_ != nullptr) routing_.model_type = TypeOf(*level->config);
    }
  }

  absl::StatusOr<ModelConfig> Read() {
    if (absl::Status status = ReadExperts(); !status.ok()) return status;
    ReadMtp();
    const LayerPlan plan = family_ != nullptr ? PlanLayers(*family_, routing_.mtp_layers, reader_)
                                              : PlanLayersByKeys(routing_.mtp_layers, reader_);
    if (!reader_.status().ok()) return reader_.status();
    if (plan.moe_layers.empty()) return NoRoutedExperts("no layer is a MoE layer");
    routing_.hash_layers = plan.hash_layers;
    routing_.routers_per_layer = family_ != nullptr ? family_->routers_per_layer : 1;
    auto geometry = Geometry::Create({.num_layers = static_cast<int32_t>(plan.num_layers),
                                      .moe_layer_ids = plan.moe_layers,
                                      .num_experts = PerLayer(experts_, "num_experts", kExperts, plan),
                                      .top_k = PerLayer(top_k_, "top_k", kTopK, plan)});
    if (!reader_.status().ok()) return reader_.status();
    if (!geometry.ok()) return geometry.status();
    ReadRouterFacts(family_ != nullptr ? family_->router : UnknownRouter(), *geometry, experts_reader(), routing_);
    if (!experts_reader().status().ok()) return experts_reader().status();
    return ModelConfig{*std::move(geometry), std::move(routing_)};
  }

 private:
  absl::Status ReadExperts() {
    if (family_ != nullptr && family_->enabled_by != nullptr) {
      const char* const keys[] = {family_->enabled_by};
      if (!reader_.Flag("enabled", keys).value_or(false)) {
        return NoRoutedExperts(absl::StrCat(family_->enabled_by, " is not set"));
      }
    }
    FindExpertsObject();
    ConfigReader& reader = experts_reader();
    const char* decisive = family_ != nullptr ? family_->decisive_experts_key : nullptr;
    const Keys keys = decisive != nullptr && reader.Has(decisive) ? Keys(&decisive, 1) : Keys(kExperts);
    experts_ = reader.IntOrInts("num_experts", keys).value_or(std::vector<int64_t>());
    if (!reader.status().ok()) return reader.status();
    const int64_t least = family_ != nullptr ? family_->min_experts : 2;
    const bool none = std::all_of(experts_.begin(), experts_.end(), [&](int64_t e) { return e < least; });
    if (experts_.empty()) return NoRoutedExperts(absl::StrCat("looked for ", Listed(kExperts)));
    if (none) return NoRoutedExperts(absl::StrCat(routing_.sources.at("num_experts"), " is ", experts_[0]));
    if (reader_.Has("is_encoder_decoder") && levels_[0].config->value("is_encoder_decoder", json()) == json(true)) {
      return InvalidConfig("is_encoder_decoder", "routes of encoder-decoder models are not supported");
    }
    top_k_ = reader.IntOrInts("top_k", kTopK).value_or(std::vector<int64_t>());
    if (reader.status().ok() && top_k_.empty()) {
      reader.Fail(kTopK[0], absl::StrCat("is missing; looked for ", Listed(kTopK)));
    }
    reader_.Update(reader.status());
    ReadZeroExperts();
    return reader_.status();
  }

  void FindExpertsObject() {
    if (family_ == nullptr || family_->experts_in == nullptr) return;
    const json& config = *levels_.back().config;
    const auto object = config.find(family_->experts_in);
    if (object == config.end() || !object->is_object()) return;
    of_experts_.emplace(*object, reader_.PathOf(family_->experts_in), routing_.sources);
  }

  // Of the object that describes the experts.
  ConfigReader& experts_reader() { return of_experts_.has_value() ? *of_experts_ : reader_; }

  void ReadZeroExperts() {
    if (family_ == nullptr) return;
    routing_.zero_experts = family_->zero_experts;
    if (family_->zero_experts_key == nullptr) return;
    const char* const keys[] = {family_->zero_experts_key};
    const int64_t count = reader_.Int("zero_experts", keys).value_or(-1);
    if (reader_.status().ok() && (count < 0 || count > kMaxExperts)) {
      reader_.Fail(keys[0], absl::StrCat("is missing, negative or above ", kMaxExperts));
    }
    routing_.zero_experts = static_cast<int32_t>(count);
  }

  // The count stands with the text model, in one of the objects around it, or in their mtp_config.
  void ReadMtp() {
    for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
      ConfigReader reader(*level->config, level->path, routing_.sources);
      std::optional<int64_t> count = reader.Int("mtp_layers", kMtp);
      const auto nested = level->config->find("mtp_config");
      if (!count.has_value() && nested != level->config->end() && nested->is_object()) {
        ConfigReader inner(*nested, reader.PathOf("mtp_config"), routing_.sources);
        count = inner.Int("mtp_layers", kMtp);
        reader_.Update(inner.status());
      }
      reader_.Update(reader.status());
      if (!count.has_value()) continue;
      if (*count < 0 || *count > kMaxLayers) reader_.Fail("mtp_layers", absl::StrCat(*count, " of them"));
      routing_.mtp_layers = static_cast<int32_t>(std::clamp<int64_t>(*count, 0, kMaxLayers));
      return;
    }
  }

  // What per_layer_config says of one layer, or nothing.
  std::optional<int64_t> Override(int32_t layer, const char* fact, Keys keys) {
    const json& config = *levels_.back().config;
    const auto overrides = config.find("per_layer_config");
    if (overrides == config.end() || !overrides->is_object()) return std::nullopt;
    const std::string key = absl::StrCat(layer);
    const auto of_layer = overrides->find(key);
    if (of_layer == overrides->end() || !of_layer->is_object()) return std::nullopt;
    std::map<std::string, std::string> unused;
    ConfigReader reader(*of_layer, reader_.PathOf(absl::StrCat("per_layer_config.", key)), unused);
    const auto value = reader.Int(fact, keys);
    reader_.Update(reader.status());
    return value;
  }

  // One number for all MoE layers, or one for each; `values` may hold one per decoder layer.
  std::vector<int32_t> PerLayer(const std::vector<int64_t>& values, const char* fact, Keys keys,
                                const LayerPlan& plan) {
    const bool one = std::all_of(values.begin(), values.end(), [&](int64_t value) { return value == values[0]; });
    if (!one && static_cast<int64_t>(values.size()) != plan.num_layers) {
      reader_.Update(InvalidConfig(routing_.sources.at(fact), absl::StrCat("has ", values.size(), " values, the model ",
                                                                           plan.num_layers, " layers")));
      return {};
    }
    const int32_t zero = keys.data() == kExperts ? routing_.zero_experts : 0;
    std::vector<int32_t> of_layers;
    for (const int32_t layer : plan.moe_layers) {
      const int64_t value = Override(layer, fact, keys).value_or(one ? values[0] : values[layer]);
      of_layers.push_back(static_cast<int32_t>(std::clamp<int64_t>(value, 0, kMaxExperts) + zero));
    }
    return of_layers;
  }

  const std::vector<Level> levels_;
  ModelRouting routing_;
  ConfigReader reader_;
  std::optional<ConfigReader> of_experts_;
  const Family* family_ = nullptr;
  std::vector<int64_t> experts_;  // As written: one number, or one per decoder layer.
  std::vector<int64_t> top_k_;
};

}  // namespace

absl::StatusOr<ModelConfig> ModelConfigFromHuggingFace(absl::string_view text) {
  const auto root = ParseJson(QuoteNonFinite(text), "config");
  if (!root.ok()) return root.status();
  if (!root->is_object()) return InvalidConfig("config", "is not a JSON object");
  return HuggingFaceModel(*root).Read();
}

}  // namespace routing_replay
