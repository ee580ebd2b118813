// What a trainer decides of a step: with which weights its rows were made, and whether too much of it falls back.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/json/json_object.h"
#include "routing_replay/trainer/fallback_limit.h"
#include "routing_replay/trainer/on_policy.h"
#include "trainer_plugin/capi/objects.h"

using namespace routing_replay;           // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;     // NOLINT(build/namespaces)
using namespace routing_replay::trainer;  // NOLINT(build/namespaces)

namespace {

using nlohmann::json;

bool IsInt64(const json& number) {
  return number.is_number_integer() &&
         (!number.is_number_unsigned() || number.get<uint64_t>() <= std::numeric_limits<int64_t>::max());
}

absl::StatusOr<std::vector<WeightSpan>> SpansFrom(const json& list, const std::string& path) {
  if (!list.is_array()) return Invalid(Reason::kField, path, "is not a list");
  std::vector<WeightSpan> spans;
  for (const json& span : list) {
    const bool fits = span.is_array() && span.size() == 4 && span[3].is_string() &&
                      std::all_of(span.begin(), span.begin() + 3, IsInt64);
    if (!fits) return Invalid(Reason::kField, path, "is not a list of [begin, end, version, label]");
    spans.push_back({.rows = {span[0].get<int64_t>(), span[1].get<int64_t>()},
                     .version = span[2].get<int64_t>(),
                     .label = span[3].get<std::string>()});
    if (spans.back().version < kUnknownWeightVersion) return Invalid(Reason::kField, path, "has a version below -1");
  }
  return spans;
}

}  // namespace

rrt_error* rrt_weights_summary(const char* text, size_t size, rrt_bytes** out) {
  return Guard([&]() -> absl::Status {
    const auto value = ParseJson(Text(text, size), "weights");
    if (!value.ok()) return value.status();
    JsonObject object(*value, "");
    std::optional<int64_t> current;
    object.Read("current", current);
    object.Require("samples");
    const json* samples = object.Find("samples");
    if (absl::Status status = object.status(); !status.ok()) return status;
    if (!samples->is_array()) return Invalid(Reason::kField, "samples", "is not a list");
    if (current.value_or(0) < kUnknownWeightVersion) return Invalid(Reason::kField, "current", "is below -1");
    std::vector<std::vector<WeightSpan>> spans;
    for (const json& sample : *samples) {
      auto of_sample = SpansFrom(sample, absl::StrCat("samples[", spans.size(), "]"));
      if (!of_sample.ok()) return of_sample.status();
      spans.push_back(*std::move(of_sample));
    }
    const WeightSummary said =
        SummarizeWeights(std::vector<absl::Span<const WeightSpan>>(spans.begin(), spans.end()), current);
    json summary = {{"samples", said.samples}, {"mixed", said.mixed}};
    if (said.first_mixed) summary["first_mixed"] = *said.first_mixed;
    if (said.oldest) summary["oldest"] = *said.oldest;
    if (said.lag) summary["lag"] = *said.lag;
    return Give(summary, out);
  });
}

int32_t rrt_exceeds_fallback_limit(double limit, int64_t samples, int64_t fallen_back) {
  return ExceedsFallbackLimit(limit, samples, fallen_back) ? 1 : 0;
}
