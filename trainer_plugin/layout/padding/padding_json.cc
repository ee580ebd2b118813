#include "trainer_plugin/layout/padding/padding_json.h"

#include <string>
#include <utility>
#include <vector>

#include "proto/json/json_object.h"

namespace routing_replay::trainer {
namespace {

using Json = nlohmann::json;
using Policy = absl::StatusOr<PaddingPolicy>;

// The policy if its options were read well.
template <typename Options>
Policy Done(const JsonObject& object, Options options) {
  if (absl::Status status = object.status(); !status.ok()) return status;
  return PaddingPolicy(std::move(options));
}

// Frameworks take a name of a format, or a word for off, where a flag would do.
void ReadFp8(JsonObject& object, bool& fp8) {
  const Json* json = object.Find("fp8");
  if (json != nullptr && json->is_string()) {
    fp8 = SkyRlFp8Enabled(json->get<std::string>());
  } else {
    object.Read("fp8", fp8);
  }
}

// One of Megatron's names of an option. A misspelt one would silently mean that it is off.
void ReadName(JsonObject& object, const char* key, const std::vector<const char*>& names, std::string& value) {
  std::vector<std::pair<const char*, const char*>> choices;
  choices.reserve(names.size());
  for (const char* name : names) choices.emplace_back(name, name);
  const char* chosen = "";
  object.Read(key, choices, chosen);
  value = chosen;
}

Policy Megatron(JsonObject& object) {
  MegatronPadding options;
  object.Read("packed", options.packed);
  object.Read("use_per_sequence_balancing", options.per_sequence_balancing);
  object.Read("hybrid_context_parallel", options.hybrid_cp);
  object.Read("dp_cp_size", options.dp_cp_size);
  object.Read("seq_length", options.sequence_length);
  return Done(object, options);
}

Policy Verl(JsonObject& object) {
  VerlPadding options;
  object.Read("use_remove_padding", options.packed);
  object.Read("cp_layout", {{"zigzag", false}, {"contiguous", true}}, options.contiguous);
  object.Read("csa_window_size", options.min_local_rows);
  object.Read("pad_to_length_bucket", options.length_bucket);
  object.Read("forced_max_seqlen", options.forced_max_length);
  object.Read("local_cp_size", options.local_cp_size);
  ReadFp8(object, options.fp8);
  return Done(object, options);
}

Policy Slime(JsonObject& object) {
  SlimePadding options;
  object.Read("data_pad_size_multiplier", options.pad_size_multiplier);
  object.Read("allgather_cp", options.allgather_cp);
  return Done(object, options);
}

Policy Miles(JsonObject& object) {
  MilesPadding options;
  object.Read("qkv_format", {{"thd", true}, {"bshd", false}}, options.packed);
  object.Read("data_pad_size_multiplier", options.pad_size_multiplier);
  object.Read("allgather_cp", options.allgather_cp);
  object.Read("compress_ratios", options.compress_ratios);
  return Done(object, std::move(options));
}

Policy SkyRl(JsonObject& object) {
  using Release = SkyRlPadding::Release;
  SkyRlPadding options;
  object.Read("remove_microbatch_padding", options.packed);
  object.Read("release", {{"main", Release::kMain}, {"pr1327", Release::kPullRequest1327}}, options.release);
  ReadFp8(object, options.fp8);
  return Done(object, options);
}

Policy NemoRl(JsonObject& object) {
  NemoRlPadding options;
  object.Read("sequence_packing", options.packed);
  object.Read("make_sequence_length_divisible_by", options.make_sequence_length_divisible_by);
  object.Read("fp8_recipe",
              {{"", Fp8Recipe::kNone},
               {"delayed", Fp8Recipe::kDelayed},
               {"tensorwise", Fp8Recipe::kDelayed},
               {"blockwise", Fp8Recipe::kBlockwise},
               {"mxfp8", Fp8Recipe::kMxfp8}},
              options.fp8_recipe);
  object.Read("hybridep", options.hybridep);
  object.Read("pp", options.pipeline_size);
  object.Read("max_packed_length_in_batch", options.max_packed_length_in_batch);
  return Done(object, options);
}

Policy MsSwift(JsonObject& object) {
  using Release = MsSwiftPadding::Release;
  MsSwiftPadding options;
  object.Read("padding_free", options.padding_free);
  ReadName(object, "fp8_recipe", {"", "blockwise", "mxfp8", "delayed", "tensorwise", "custom"}, options.fp8_recipe);
  object.Read("fp8_format", options.fp8_format);
  object.Read("fp4_format", options.fp4_format);
  std::string attention, dispatcher;
  ReadName(object, "attention_backend", {"", "auto", "flash", "fused", "unfused", "local"}, attention);
  options.fused_attention = attention == "fused";
  object.Read("release", {{"main", Release::kMain}, {"before_9722", Release::kBefore9722}}, options.release);
  object.Read("moe_flex_dispatcher_backend", dispatcher);
  object.Read("pull_request_8393", options.hybridep);
  options.hybridep = options.hybridep && dispatcher == "hybridep";
  object.Read("seq_length", options.seq_length);
  object.Read("max_length", options.max_length);
  return Done(object, std::move(options));
}

Policy Areal(JsonObject& object) {
  ArealPadding options;
  ReadFp8(object, options.fp8);
  return Done(object, options);
}

Policy PrimeRl(JsonObject& object) {
  PrimeRlPadding options;
  object.Read("pad_to_multiple_of", options.pad_to_multiple_of);
  return Done(object, options);
}

Json WithoutNulls(const Json& json) {
  if (!json.is_object()) return json;
  Json kept = Json::object();
  for (const auto& [key, value] : json.items()) {
    if (!value.is_null()) kept[key] = value;
  }
  return kept;
}

}  // namespace

absl::StatusOr<PaddingPolicy> PaddingPolicyFromJson(const Json& json, absl::string_view path) {
  using Reader = Policy (*)(JsonObject&);
  const Json given = WithoutNulls(json);
  JsonObject object(given, path);
  object.Require("policy");
  Reader reader = nullptr;
  object.Read("policy",
              {{"megatron", Megatron},
               {"verl", Verl},
               {"slime", Slime},
               {"miles", Miles},
               {"skyrl", SkyRl},
               {"nemo_rl", NemoRl},
               {"ms_swift", MsSwift},
               {"areal", Areal},
               {"prime_rl", PrimeRl}},
              reader);
  if (reader != nullptr) return reader(object);
  return object.status();
}

}  // namespace routing_replay::trainer
