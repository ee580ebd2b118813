#include "tests/golden/kinds/framework_policy.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "trainer_plugin/layout/plan_json.h"

namespace routing_replay::golden {
namespace {

using trainer::UnpaddedBatch;

// Returns the names of fields that hold sizes of the batch or the ranks, and are not options of a policy.
const std::set<std::string>& Sizes() {
  static const auto& names = *new std::set<std::string>{"framework",
                                                        "tp",
                                                        "cp",
                                                        "local_cp_size",
                                                        "sequence_parallel",
                                                        "lengths",
                                                        "num_experts",
                                                        "tensor_model_parallel_size",
                                                        "context_parallel_size"};
  return names;
}

// Returns the framework's own name for an option of the golden files, which for some options is different.
std::string OptionName(const std::string& framework, const std::string& name) {
  static const auto& names = *new std::map<std::string, std::string>{
      {"verl fp8_padding", "fp8"},
      {"verl min_local_rows", "csa_window_size"},
      {"nemo_rl max_packed", "max_packed_length_in_batch"},
  };
  const auto found = names.find(absl::StrCat(framework, " ", name));
  return found == names.end() ? name : found->second;
}

void SetFormat(const std::string& framework, bool packed, Json& policy) {
  if (framework == "verl") policy["use_remove_padding"] = packed;
  if (framework == "miles") policy["qkv_format"] = packed ? "thd" : "bshd";
  if (framework == "skyrl") policy["remove_microbatch_padding"] = packed;
}

// Golden files do not name the framework's release, so it is recognized by the options that they contain.
void SetRelease(const std::string& framework, const Json& options, Json& policy) {
  if (framework == "ms_swift" && options.contains("moe_flex_dispatcher_backend")) policy["pull_request_8393"] = true;
  if (framework == "ms_swift" && !options.contains("fp4_format") && !options.contains("padding_free")) {
    policy["release"] = "before_9722";
  }
  if (framework == "skyrl" && options.contains("remove_microbatch_padding") && !options.contains("fp8")) {
    policy["release"] = "pr1327";
  }
}

// The AddAlignments functions add the numbers of a policy that do not depend on the padded batch, such as the multiple
// to which it pads.
void AddAlignments(const UnpaddedBatch& batch, const trainer::SkyRlPadding& options, Json& ours) {
  ours["packed_alignment"] = SkyRlPackedAlignment(batch, options.fp8);
  ours["unpacked_alignment"] = SkyRlUnpackedAlignment(batch, options.fp8);
}

void AddAlignments(const UnpaddedBatch& batch, const trainer::MsSwiftPadding& options, Json& ours) {
  const auto multiple = MsSwiftPaddingTo(batch, options);
  ours["padding_to"] = multiple ? Json(*multiple) : Json();
  const int64_t divided = int64_t{batch.tp_size} * (batch.cp_size > 1 ? 2 * batch.cp_size : 1);
  ours["multiple_of_2cp_tp"] = multiple.value_or(1) % divided == 0;
}

void AddAlignments(const UnpaddedBatch& batch, const trainer::NemoRlPadding& options, Json& ours) {
  const auto multiples = GetNemoRlMultiples(batch, options);
  if (!multiples.ok()) return;
  ours["individual_multiple"] = multiples->individual;
  ours["packed_multiple"] = multiples->packed;
  ours["packed_to"] = multiples->packed_to ? Json(*multiples->packed_to) : Json();
}

void AddAlignments(const UnpaddedBatch& batch, const trainer::MilesPadding& options, Json& ours) {
  ours["max_seq_len"] = MilesMaxLength(batch, options);
}

template <typename Options>
void AddAlignments(const UnpaddedBatch&, const Options&, Json&) {}

void AddLayout(const trainer::MicroBatchLayout& layout, Json& ours) {
  if (layout.format == trainer::TokenFormat::kBshd) {
    ours["padded_length"] = layout.padded_length;
    ours["local_length"] = layout.padded_length / layout.cp_size;
    return;
  }
  const std::vector<int64_t>& cu = layout.cu_seqlens_padded;
  for (size_t i = 0; i < layout.sequences.size(); ++i) ours["padded_lengths"].push_back(cu[i + 1] - cu[i]);
  ours["cu_seqlens_padded"] = cu;
  ours["total_padded_rows"] = layout.total_rows;
  ours["local_rows_before_sp"] = layout.total_rows / layout.cp_size;
}

}  // namespace

absl::StatusOr<trainer::PaddingPolicy> PolicyOf(const std::string& framework, const Json& options) {
  Json policy = {{"policy", framework}};
  for (const auto& [name, value] : options.items()) {
    if (name == "format") {
      SetFormat(framework, value == "THD", policy);
    } else if (Sizes().count(name) == 0 && !value.is_null()) {
      policy[OptionName(framework, name)] = value;
    }
  }
  SetRelease(framework, options, policy);
  const auto read = trainer::PaddingPolicyFromJson(policy);
  if (read.ok()) return read;
  return absl::InvalidArgumentError(absl::StrCat("unknown policy ", framework, ": ", read.status().message()));
}

absl::StatusOr<Json> NumbersOf(const UnpaddedBatch& batch, const trainer::PaddingPolicy& policy) {
  Json ours = Json::object();
  if (!batch.sequences.empty()) {
    const auto prediction = trainer::PredictPadding(batch, policy);
    if (!prediction.ok()) return prediction.status();
    AddLayout(prediction->layout, ours);
  }
  std::visit([&](const auto& options) { AddAlignments(batch, options, ours); }, policy);
  return ours;
}

Outcome CompareNumbers(const Json& ours, const Json& expected) {
  for (const auto& [name, value] : expected.items()) {
    if (!ours.contains(name)) return Failed(absl::StrCat("no policy gives ", name));
    if (ours[name] != value) return Failed(absl::StrCat(name, " is ", ours[name].dump(), ", expected ", value.dump()));
  }
  return expected.empty() ? Failed("the case expects nothing") : Passed();
}

trainer::UnpaddedBatch BatchOf(const std::vector<int64_t>& lengths, int32_t cp_size, int32_t tp_size,
                               bool sequence_parallel) {
  trainer::UnpaddedBatch batch{
      .sequences = {}, .cp_size = cp_size, .tp_size = tp_size, .sequence_parallel = sequence_parallel};
  for (const int64_t tokens : lengths) {
    batch.sequences.push_back({.tokens = tokens, .recorded_rows = std::max<int64_t>(tokens - 1, 0)});
  }
  return batch;
}

}  // namespace routing_replay::golden
