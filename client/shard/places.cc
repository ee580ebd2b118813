#include "client/shard/places.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace routing_replay::client {

std::optional<size_t> Places::Find(Producer producer, int64_t handle) {
  const uint64_t key = Key(producer, handle);
  MutexLock lock(mutex_);
  if (const auto found = newer_.find(key); found != newer_.end()) return found->second;
  const auto found = older_.find(key);
  if (found == older_.end()) return std::nullopt;
  const uint32_t member = found->second;
  Insert(key, member);
  return member;
}

size_t Places::FindOrNatural(Producer producer, int64_t handle) {
  const std::optional<size_t> known = Find(producer, handle);
  return known ? *known : members_.NaturalOwner(handle);
}

void Places::Remember(Producer producer, int64_t handle, size_t member) {
  MutexLock lock(mutex_);
  Insert(Key(producer, handle), static_cast<uint32_t>(member));
}

void Places::Forget(Producer producer, int64_t handle) {
  const uint64_t key = Key(producer, handle);
  MutexLock lock(mutex_);
  newer_.erase(key);
  older_.erase(key);
}

absl::StatusOr<std::optional<size_t>> Places::Learn(Producer producer, int64_t handle,
                                                    absl::Span<const std::optional<bool>> found) {
  const size_t natural = members_.NaturalOwner(handle);
  const auto having = std::find(found.begin(), found.end(), std::optional(true));
  if (having != found.end()) {
    const size_t place = found[natural] == true ? natural : static_cast<size_t>(having - found.begin());
    Remember(producer, handle, place);
    return std::optional(place);
  }
  for (size_t member = 0; member < found.size(); ++member) {
    if (found[member] || member == natural) continue;
    return absl::UnavailableError(absl::StrCat("the sample may be with server ", members_.endpoints()[member],
                                               ", which did not answer; no other one has it"));
  }
  return std::optional<size_t>();
}

AppendRoute Places::Route(const AppendFacts& append, bool searched) {
  const int64_t handle = SampleHandle(append.sample);
  if (const auto known = Find(append.producer, handle)) return {.place = known};
  const bool forks = !append.prefix_sample.empty();
  const int64_t leader = forks ? SampleHandle(append.prefix_sample) : handle;
  const std::optional<size_t> place = forks ? Find(append.producer, leader) : std::nullopt;
  if (!place && !searched && (forks || !append.begins)) return {.search_for = leader};
  const size_t decided = place.value_or(members_.NaturalOwner(leader));
  if (forks || append.begins) Remember(append.producer, handle, decided);
  return {.place = decided};
}

void Places::Insert(uint64_t key, uint32_t member) {
  if (newer_.size() >= half_) {
    older_ = std::move(newer_);
    newer_.clear();
  }
  newer_[key] = member;
}

}  // namespace routing_replay::client
