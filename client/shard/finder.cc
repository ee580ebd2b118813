#include "client/shard/finder.h"

#include <algorithm>

#include "client/server_limits.h"

namespace routing_replay::client {

absl::StatusOr<std::optional<size_t>> Finder::Search(Producer producer, int64_t handle) {
  const auto found = members_->Locate(run_, producer, {handle}, DeadlineAfter(Clock::Real().Now(), kAskTimeout));
  std::vector<std::optional<bool>> has;
  for (const auto& handles : found) has.push_back(handles ? std::optional(!handles->empty()) : std::nullopt);
  return places_.Learn(producer, handle, has);
}

absl::StatusOr<size_t> Finder::PlaceOf(const AppendFacts& append) {
  AppendRoute route = places_.Route(append, false);
  if (!route.place) {
    const auto found = Search(append.producer, route.search_for);
    if (!found.ok()) return WithSample(found.status(), append.sample);
    route = places_.Route(append, true);
  }
  return *route.place;
}

}  // namespace routing_replay::client
