#include "proto/wire/model_config/layer_pattern.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay {
inline namespace wire {
namespace {

constexpr const char* kFact = "moe_layers";
constexpr const char* kLayerTypes = "mlp_layer_types";
constexpr const char* kFirstK = "first_k_dense_replace";
constexpr const char* kFrequency = "moe_layer_freq";

std::vector<bool> FlagsOf(const std::vector<int64_t>& ids, int64_t num_layers) {
  std::vector<bool> flags(std::clamp<int64_t>(num_layers, 0, kMaxLayers));
  for (const int64_t id : ids) {
    if (id >= 0 && id < num_layers) flags[id] = true;  // MTP layers may follow.
  }
  return flags;
}

// Flags of layers by the names of what they hold.
std::optional<std::vector<bool>> FlagsOfNames(const std::vector<std::string>& names, const char* key,
                                              ConfigReader& reader) {
  constexpr std::array kMoe = {"sparse", "moe", "hash_moe"};
  constexpr std::array kOthers = {"dense",     "mlp",   "linear_attention", "full_attention",
                                  "attention", "mamba", "sliding_attention"};
  std::vector<bool> flags;
  for (const std::string& name : names) {
    const bool moe = std::find(kMoe.begin(), kMoe.end(), name) != kMoe.end();
    if (!moe && std::find(kOthers.begin(), kOthers.end(), name) == kOthers.end()) {
      reader.Fail(key, absl::StrCat("\"", name, "\" is no kind of layer that is known"));
      return std::nullopt;
    }
    flags.push_back(moe);
  }
  return flags;
}

// One number for the whole model, written once or several times.
std::optional<int64_t> OneInt(const char* key, ConfigReader& reader) {
  const char* const keys[] = {key};
  const auto numbers = reader.IntOrInts(kFact, keys);
  if (!numbers.has_value()) return std::nullopt;
  if (numbers->empty() ||
      std::any_of(numbers->begin(), numbers->end(), [&](int64_t n) { return n != (*numbers)[0]; })) {
    reader.Fail(key, "is not one number for all");
    return std::nullopt;
  }
  return (*numbers)[0];
}

void EveryStep(int64_t step, MoeLayerRule& rule) {
  rule.step = step;
  rule.offset = step - 1;
}

class Planner {
 public:
  Planner(const Family& family, int64_t mtp_layers, ConfigReader& reader)
      : family_(family), mtp_layers_(mtp_layers), reader_(reader) {}

  LayerPlan Plan() {
    LayerPlan plan;
    if (family_.pattern == LayerPattern::kBlockTypes) {
      Blocks();
      num_layers_ = rule_.moe.has_value() ? static_cast<int64_t>(rule_.moe->size()) : 0;
    } else {
      const char* const keys[] = {family_.depth_key};
      num_layers_ = reader_.Int("num_layers", keys).value_or(0);
      if (reader_.status().ok() && num_layers_ < 1) reader_.Fail(family_.depth_key, "is missing or below 1");
      if (reader_.status().ok()) FromKeys();
    }
    if (!reader_.status().ok()) return plan;
    auto ids = MoeLayerIds(num_layers_, rule_, reader_.PathOf(key_));
    if (!ids.ok()) {
      reader_.Update(ids.status());
      return plan;
    }
    return {.num_layers = num_layers_, .moe_layers = *std::move(ids), .hash_layers = std::move(hash_layers_)};
  }

 private:
  void FromKeys() {
    if (reader_.Has(kLayerTypes)) return Names();
    switch (family_.pattern) {
      case LayerPattern::kAll:
      case LayerPattern::kBlockTypes:
        return;
      case LayerPattern::kPrefix:
        return Prefix();
      case LayerPattern::kSparseStep:
        return SparseStep();
      case LayerPattern::kInterval:
        return Interval();
      case LayerPattern::kPeriod:
        rule_.step = Or("expert_layer_period", 2);
        rule_.offset = Or("expert_layer_offset", 1);
        return;
      case LayerPattern::kIdsOrStep:
        return IdsOrStep();
      case LayerPattern::kIdsOrPrefix:
        return IdsOrPrefix();
      case LayerPattern::kHashPrefix:
        return HashPrefix();
    }
  }

  int64_t Or(const char* key, int64_t otherwise) {
    key_ = key;
    return OneInt(key, reader_).value_or(otherwise);
  }

  void Names() {
    key_ = kLayerTypes;
    const char* const keys[] = {kLayerTypes};
    auto names = reader_.Texts(kFact, keys);
    if (!names.has_value()) return;
    if (static_cast<int64_t>(names->size()) == num_layers_ + mtp_layers_) names->resize(num_layers_);
    rule_.moe = FlagsOfNames(*names, kLayerTypes, reader_);
    for (size_t i = 0; i < names->size(); ++i) {
      if ((*names)[i] == "hash_moe") hash_layers_.push_back(static_cast<int32_t>(i));
    }
  }

  void Prefix() {
    rule_.first = family_.prefix;
    if (family_.prefix_key != nullptr) {
      const char* const keys[] = {family_.prefix_key};
      if (const auto prefix = reader_.Int(kFact, keys)) rule_.first = *prefix;
      key_ = family_.prefix_key;
    } else if (OneInt(kFirstK, reader_).value_or(family_.prefix) != family_.prefix) {
      return reader_.Fail(kFirstK, absl::StrCat("models of this type have ", family_.prefix,
                                                " dense layers first, whatever this key says: tell mlp_layer_types"));
    }
    if (rule_.first == kNoDefault) {
      return reader_.Fail(family_.prefix_key, absl::StrCat("is missing, and ", kLayerTypes, ", too"));
    }
    Frequency();
  }

  void Frequency() {
    const char* const keys[] = {kFrequency};
    const auto* frequency = reader_.Find("moe_layer_frequency", keys);
    if (frequency == nullptr) return;
    if (frequency->is_array()) {
      const auto flags = reader_.Ints("moe_layer_frequency", keys);
      if (flags.has_value()) rule_.moe = std::vector<bool>(flags->begin(), flags->end());
      key_ = kFrequency;
      return;
    }
    const int64_t step = reader_.Int("moe_layer_frequency", keys).value_or(1);
    if (step != 1) key_ = kFrequency;
    if (step != 1 && !family_.every_nth) {
      return reader_.Fail(kFrequency,
                          "readers of this type's configurations disagree on a frequency other than 1: "
                          "tell mlp_layer_types");
    }
    rule_.step = step;
  }

  void SparseStep() {
    EveryStep(Or("decoder_sparse_step", 1), rule_);
    const char* const keys[] = {"mlp_only_layers"};
    if (auto dense = reader_.Ints("dense_layers", keys)) {
      rule_.dense = *std::move(dense);
    } else {
      rule_.first = family_.prefix;
    }
  }

  void Interval() {
    rule_.first = Or("moe_layer_start_index", family_.prefix);
    const int64_t last = Or("moe_layer_end_index", -1);
    rule_.last = last == -1 ? num_layers_ - 1 : last;
    EveryStep(Or("moe_layer_interval", 1), rule_);
  }

  void IdsOrStep() {
    const char* const keys[] = {"moe_layers"};
    if (const auto ids = reader_.Ints(kFact, keys)) {
      rule_.moe = FlagsOf(*ids, num_layers_);
    } else {
      EveryStep(Or("interleave_moe_layer_step", 1), rule_);
    }
  }

  void IdsOrPrefix() {
    key_ = "moe_layers_enum";
    const char* const keys[] = {"moe_layers_enum"};
    const auto* written = reader_.Find(kFact, keys);
    if (written == nullptr) {
      rule_.first = family_.prefix;
    } else if (written->is_string()) {
      std::vector<int64_t> ids;
      const auto text = written->get<std::string>();
      for (const absl::string_view item : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
        if (!absl::SimpleAtoi(item, &ids.emplace_back())) return reader_.Fail(key_, "is no list of layers");
      }
      rule_.moe = FlagsOf(ids, num_layers_);
    } else if (const auto ids = reader_.Ints(kFact, keys)) {
      rule_.moe = FlagsOf(*ids, num_layers_);
    }
  }

  void HashPrefix() {
    const int64_t hashed = std::min({Or("num_hash_layers", family_.prefix), num_layers_, int64_t{kMaxLayers}});
    for (int32_t i = 0; i < hashed; ++i) hash_layers_.push_back(i);
  }

  void Blocks() {
    const char* const lists[] = {"layers_block_type", "layer_types"};
    const char* const patterns[] = {"hybrid_override_pattern"};
    key_ = lists[0];
    if (const auto names = reader_.Texts(kFact, lists)) {
      rule_.moe = FlagsOfNames(*names, key_, reader_);
    } else if (const auto pattern = reader_.Text(kFact, patterns)) {
      auto flags = HybridMoeFlags(*pattern, reader_.PathOf(patterns[0]));
      reader_.Update(flags.status());
      if (flags.ok()) rule_.moe = *std::move(flags);
    } else {
      reader_.Fail(key_, absl::StrCat("is missing, and ", lists[1], " and ", patterns[0], ", too"));
    }
  }

  const Family& family_;
  const int64_t mtp_layers_;
  ConfigReader& reader_;
  int64_t num_layers_ = 0;
  MoeLayerRule rule_;
  std::vector<int32_t> hash_layers_;
  const char* key_ = "num_hidden_layers";  // The one that decided, for messages.
};

// Keys from which a pattern may be told without knowing the type.
struct TellingKey {
  const char* key;
  LayerPattern pattern;
};
constexpr TellingKey kTellingKeys[] = {
    {kLayerTypes, LayerPattern::kAll},
    {kFirstK, LayerPattern::kPrefix},
    {"num_dense_layers", LayerPattern::kPrefix},
    {kFrequency, LayerPattern::kPrefix},
    {"decoder_sparse_step", LayerPattern::kSparseStep},
    {"mlp_only_layers", LayerPattern::kSparseStep},
    {"moe_layer_start_index", LayerPattern::kInterval},
    {"moe_layer_interval", LayerPattern::kInterval},
    {"expert_layer_period", LayerPattern::kPeriod},
    {"moe_layers", LayerPattern::kIdsOrStep},
    {"interleave_moe_layer_step", LayerPattern::kIdsOrStep},
    {"moe_layers_enum", LayerPattern::kIdsOrPrefix},
    {"layers_block_type", LayerPattern::kBlockTypes},
    {"hybrid_override_pattern", LayerPattern::kBlockTypes},
};

Family FamilyOf(const TellingKey& telling, const ConfigReader& reader) {
  const bool prefix = telling.pattern == LayerPattern::kPrefix;
  const char* prefix_key = reader.Has("num_dense_layers") ? "num_dense_layers" : kFirstK;
  const char* depth_key = "num_hidden_layers";
  for (const char* key : {"num_layers", "n_layers"}) {
    if (!reader.Has(depth_key) && reader.Has(key)) depth_key = key;
  }
  return {.model_types = "",
          .pattern = telling.pattern,
          .prefix_key = prefix ? prefix_key : nullptr,
          .router = {},
          .depth_key = depth_key};
}

}  // namespace

LayerPlan PlanLayers(const Family& family, int64_t mtp_layers, ConfigReader& reader) {
  return Planner(family, mtp_layers, reader).Plan();
}

LayerPlan PlanLayersByKeys(int64_t mtp_layers, ConfigReader& reader) {
  std::optional<LayerPlan> plan;
  const char* first = nullptr;
  std::string looked_for;
  for (const TellingKey& telling : kTellingKeys) {
    absl::StrAppend(&looked_for, looked_for.empty() ? "" : ", ", telling.key);
    if (!reader.Has(telling.key)) continue;
    LayerPlan told = PlanLayers(FamilyOf(telling, reader), mtp_layers, reader);
    if (!reader.status().ok()) return {};
    if (plan.has_value() && (plan->moe_layers != told.moe_layers || plan->num_layers != told.num_layers)) {
      reader.Fail(telling.key, absl::StrCat("tells other MoE layers than ", first,
                                            ", and the model's type, which "
                                            "would decide, is not known"));
      return {};
    }
    if (!plan.has_value()) first = telling.key;
    if (!plan.has_value()) plan = std::move(told);
  }
  if (!plan.has_value()) {
    reader.Fail("model_type",
                absl::StrCat("is not known, and no key tells which layers are MoE layers; looked for ", looked_for));
    return {};
  }
  return *std::move(plan);
}

}  // namespace wire
}  // namespace routing_replay
