#include <algorithm>
#include <utility>

#include "routing_replay/trainer/collective.h"

namespace routing_replay::trainer {
namespace {

class ComposedCollective final : public Collective {
 public:
  explicit ComposedCollective(std::vector<std::unique_ptr<Collective>> groups) : groups_(std::move(groups)) {
    for (const auto& group : groups_) {
      rank_ += group->rank() * size_;
      size_ *= group->size();
    }
  }

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return size_; }

 private:
  absl::Status ReduceMax(absl::Span<int64_t> values, Deadline deadline) override {
    std::vector<int64_t> reduced(values.begin(), values.end());
    for (const auto& group : groups_) {
      if (absl::Status status = group->AllReduceMax(absl::MakeSpan(reduced), deadline); !status.ok()) return status;
    }
    std::copy(reduced.begin(), reduced.end(), values.begin());
    return absl::OkStatus();
  }

  // After a group, what was gathered is that of all ranks that differ in this digit or a lower one, in their order.
  absl::StatusOr<std::vector<uint8_t>> Gather(absl::Span<const uint8_t> bytes, Deadline deadline) override {
    std::vector<uint8_t> gathered(bytes.begin(), bytes.end());
    for (const auto& group : groups_) {
      auto more = group->AllGather(gathered, deadline);
      if (!more.ok()) return more.status();
      gathered = *std::move(more);
    }
    return gathered;
  }

  const std::vector<std::unique_ptr<Collective>> groups_;
  int32_t rank_ = 0;
  int32_t size_ = 1;
};

}  // namespace

std::unique_ptr<Collective> ComposeCollectives(std::vector<std::unique_ptr<Collective>> groups) {
  return std::make_unique<ComposedCollective>(std::move(groups));
}

}  // namespace routing_replay::trainer
