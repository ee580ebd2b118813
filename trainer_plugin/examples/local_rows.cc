#include <memory>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/source.h"
#include "rows.h"

using namespace routing_replay;
using namespace routing_replay::trainer;

absl::StatusOr<Rows> LocalRows() {
  constexpr int64_t kLayers = 8, kExperts = 64, kTopK = 4;
  Rows rows{.geometry = Geometry::Uniform(kLayers, kExperts, kTopK)};
  const auto source = std::make_shared<LocalSource>(rows.geometry);
  for (int64_t tokens : {37, 12, 5}) {
    const std::string sample = absl::StrCat("local/", rows.samples.size());
    std::vector<int32_t> ids;  // [rows][layers][K]
    for (int64_t i = 0; i < (tokens - 1) * kLayers; ++i) {
      for (int64_t k = 0; k < kTopK; ++k) ids.push_back(static_cast<int32_t>((i * 5 + k * 7) % kExperts));
    }
    const absl::Status added =
        source->Add({.sample = sample}, {.dtype = DType::kI32, .shape = {tokens - 1, kLayers, kTopK}},
                    {reinterpret_cast<const uint8_t*>(ids.data()), ids.size() * sizeof(int32_t)});
    if (!added.ok()) return added;
    rows.samples.push_back({.sample = sample, .num_tokens = tokens});
  }
  rows.fetch = [source](const ReplayPlan& plan, const std::vector<FetchSequence>& samples) {
    return source->Fetch(plan, samples, {});
  };
  return rows;
}
