#include "routing_replay/trainer/collective.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/wire/mutex.h"

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

namespace {

using Contribution = std::vector<uint8_t>;
using Contributions = std::vector<std::optional<Contribution>>;  // By rank.

enum class Call : uint8_t { kReduceMax, kGather };

// Where the ranks of a group meet, again and again. A meeting ends when all have come, and the next one cannot end
// before all have left it: each of them comes to it, too.
class MeetingPoint {
 public:
  explicit MeetingPoint(int32_t size) : size_(size), here_(size) {}

  int32_t size() const { return size_; }

  // What all ranks brought.
  absl::StatusOr<std::shared_ptr<const Contributions>> Meet(int32_t rank, Call call, Contribution brought,
                                                            Collective::Deadline deadline) {
    MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = Check(rank, call, brought.size());
    if (!failure_.ok()) {
      changed_.NotifyAll();
      return failure_;
    }
    call_ = call;
    here_[rank] = std::move(brought);
    if (++arrived_ == size_) {
      met_ = std::make_shared<const Contributions>(std::exchange(here_, Contributions(size_)));
      arrived_ = 0;
      ++meeting_;
      changed_.NotifyAll();
      return met_;
    }
    const int64_t mine = meeting_;
    while (meeting_ == mine && failure_.ok()) {
      if (!changed_.WaitUntil(mutex_, deadline) && meeting_ == mine && failure_.ok()) {
        failure_ = Late();
        changed_.NotifyAll();
      }
    }
    if (meeting_ == mine) return failure_;
    return met_;
  }

 private:
  absl::Status Check(int32_t rank, Call call, size_t size) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (here_[rank]) {
      return absl::FailedPreconditionError(absl::StrCat("collective: rank ", rank, " calls twice at a time"));
    }
    for (int32_t other = 0; other < size_; ++other) {
      if (!here_[other] || (call_ == call && here_[other]->size() == size)) continue;
      return absl::FailedPreconditionError(absl::StrCat("collective: rank ", rank,
                                                        call_ == call ? "" : " calls another function and", " brings ",
                                                        size, " bytes, rank ", other, " ", here_[other]->size()));
    }
    return absl::OkStatus();
  }

  absl::Status Late() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<int32_t> late;
    for (int32_t rank = 0; rank < size_; ++rank) {
      if (!here_[rank]) late.push_back(rank);
    }
    return absl::DeadlineExceededError(
        absl::StrCat("collective: of ", size_, " ranks these did not come: ", absl::StrJoin(late, ", ")));
  }

  const int32_t size_;
  Mutex mutex_;
  CondVar changed_;
  Contributions here_ ABSL_GUARDED_BY(mutex_);  // Of those that wait.
  int32_t arrived_ ABSL_GUARDED_BY(mutex_) = 0;
  Call call_ ABSL_GUARDED_BY(mutex_) = Call::kReduceMax;  // Of those that wait.
  int64_t meeting_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const Contributions> met_ ABSL_GUARDED_BY(mutex_);  // Of the last meeting.
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

class LocalCollective final : public Collective {
 public:
  LocalCollective(std::shared_ptr<MeetingPoint> point, int32_t rank) : point_(std::move(point)), rank_(rank) {}

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return point_->size(); }

 private:
  absl::Status ReduceMax(absl::Span<int64_t> values, Deadline deadline) override {
    Contribution brought(values.size() * sizeof(int64_t));
    if (!values.empty()) std::memcpy(brought.data(), values.data(), brought.size());
    const auto met = point_->Meet(rank_, Call::kReduceMax, std::move(brought), deadline);
    if (!met.ok()) return met.status();
    for (const auto& contribution : **met) {
      for (size_t i = 0; i < values.size(); ++i) {
        int64_t value;
        std::memcpy(&value, contribution->data() + i * sizeof value, sizeof value);
        values[i] = std::max(values[i], value);
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<uint8_t>> Gather(absl::Span<const uint8_t> bytes, Deadline deadline) override {
    const auto met = point_->Meet(rank_, Call::kGather, {bytes.begin(), bytes.end()}, deadline);
    if (!met.ok()) return met.status();
    std::vector<uint8_t> gathered;
    gathered.reserve(bytes.size() * (*met)->size());
    for (const auto& contribution : **met) gathered.insert(gathered.end(), contribution->begin(), contribution->end());
    return gathered;
  }

  const std::shared_ptr<MeetingPoint> point_;
  const int32_t rank_;
};

}  // namespace

std::vector<std::unique_ptr<Collective>> MakeLocalCollectives(int32_t size) {
  const auto point = std::make_shared<MeetingPoint>(size);
  std::vector<std::unique_ptr<Collective>> ranks;
  ranks.reserve(static_cast<size_t>(size));
  for (int32_t rank = 0; rank < size; ++rank) ranks.push_back(std::make_unique<LocalCollective>(point, rank));
  return ranks;
}

}  // namespace routing_replay::trainer
