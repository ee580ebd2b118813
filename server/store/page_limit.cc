#include "server/store/page_limit.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

constexpr int32_t kDefaultPageSize = 1000;
constexpr int32_t kMaxPageSize = 10000;
constexpr int64_t kPageBytes = 1 << 20;

}  // namespace

absl::StatusOr<size_t> PageLimit(int32_t page_size) {
  if (page_size < 0) {
    return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("page_size: ", page_size, " is negative"),
                     {.reason = Reason::kField, .field = "page_size"});
  }
  return static_cast<size_t>(page_size == 0 ? kDefaultPageSize : std::min(page_size, kMaxPageSize));
}

int64_t StateBytes(const SampleState& state) {
  size_t bytes = sizeof(state) + state.sample.size() + state.engine.size() + state.unrecorded.size() * sizeof(RowRange);
  for (const WeightSpan& span : state.weights) bytes += sizeof(span) + span.label.size();
  for (const Provenance& from : state.provenance) bytes += sizeof(from) + from.weight_label.size() + from.engine.size();
  return static_cast<int64_t>(bytes);
}

bool PageBuilder::Add(SampleState state) {
  bytes_ += StateBytes(state);
  if (!page_.samples.empty() && (page_.samples.size() == limit_ || bytes_ > kPageBytes)) {
    page_.next_token = page_.samples.back().sample;
    return false;
  }
  page_.samples.push_back(std::move(state));
  return true;
}

}  // namespace routing_replay::server
