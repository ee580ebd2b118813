#include "routing_replay/trainer/collective.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace routing_replay::trainer {
namespace {

absl::Status Unusable(const absl::Status& failure) {
  return absl::FailedPreconditionError(
      absl::StrCat("collective: not usable after an earlier failure: ", failure.message()));
}

}  // namespace

absl::Status Collective::AllReduceMax(absl::Span<int64_t> values, Deadline deadline) {
  if (!failure_.ok()) return Unusable(failure_);
  failure_ = ReduceMax(values, deadline);
  return failure_;
}

absl::StatusOr<std::vector<uint8_t>> Collective::AllGather(absl::Span<const uint8_t> bytes, Deadline deadline) {
  if (!failure_.ok()) return Unusable(failure_);
  auto gathered = Gather(bytes, deadline);
  failure_ = gathered.status();
  return gathered;
}

absl::StatusOr<std::vector<std::vector<uint8_t>>> AllGatherAnySize(Collective& collective,
                                                                   absl::Span<const uint8_t> bytes,
                                                                   Collective::Deadline deadline) {
  // Of all ranks: the sizes in their places, so that one reduction tells the longest and how long each one is.
  std::vector<int64_t> sizes(collective.size());
  sizes[collective.rank()] = static_cast<int64_t>(bytes.size());
  if (absl::Status status = collective.AllReduceMax(absl::MakeSpan(sizes), deadline); !status.ok()) return status;
  const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<uint8_t> padded(bytes.begin(), bytes.end());
  padded.resize(longest);
  auto gathered = collective.AllGather(padded, deadline);
  if (!gathered.ok()) return gathered.status();
  std::vector<std::vector<uint8_t>> parts;
  for (int32_t rank = 0; rank < collective.size(); ++rank) {
    const auto begin = gathered->begin() + rank * longest;
    parts.emplace_back(begin, begin + sizes[rank]);
  }
  return parts;
}

}  // namespace routing_replay::trainer
