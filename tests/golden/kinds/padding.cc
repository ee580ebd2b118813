// padding_*: what a framework's options lead to: padded lengths, boundaries, the total number of rows, and the
// multiples that they are computed from.
#include "absl/strings/str_cat.h"
#include "tests/golden/kind.h"
#include "tests/golden/kinds/framework_policy.h"

namespace routing_replay::golden {
namespace {

using trainer::UnpaddedBatch;

// Tests only the values of SkyRL's fp8 option: flags, words, null.
Outcome RunFp8Value(const Json& value, const Json& expect) {
  const std::string word = value.is_string() ? value.get<std::string>() : value == true ? "true" : "";
  return CompareNumbers({{"fp8", trainer::SkyRlFp8Enabled(word)}}, expect);
}

Outcome RunPadding(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  const Json& expect = golden_case.at("expect");
  if (input.contains("fp8_value")) return RunFp8Value(input["fp8_value"], expect);
  const bool ms_swift = input.contains("tensor_model_parallel_size");
  const auto policy = PolicyOf(ms_swift ? "ms_swift" : input.at("framework").get<std::string>(), input);
  if (!policy.ok()) return Failed(std::string(policy.status().message()));
  // A framework without this flag in its files always divides rows among its tensor-parallel ranks if tp > 1.
  const bool flagged = input.contains("sequence_parallel");
  const UnpaddedBatch batch = BatchOf(input.value("lengths", std::vector<int64_t>{}),
                                      input.at(ms_swift ? "context_parallel_size" : "cp").get<int32_t>(),
                                      input.at(ms_swift ? "tensor_model_parallel_size" : "tp").get<int32_t>(),
                                      flagged && input["sequence_parallel"].get<bool>());
  const auto ours = NumbersOf(batch, *policy);
  if (expect.value("error", false)) return ours.ok() ? Failed("accepted, expected a rejection") : Passed();
  if (!ours.ok()) return Failed(absl::StrCat("rejected: ", ours.status().message()));
  return CompareNumbers(*ours, expect);
}

}  // namespace

Kind PaddingKind() { return {{"padding_"}, RunPadding}; }

}  // namespace routing_replay::golden
