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

absl::StatusOr<size_t> Finder::PlaceOf(const AppendOptions& append, int64_t rows) {
  const AppendFacts facts{
      .producer = append.producer,
      .sample = append.sample,
      .prefix_sample = append.prefix_sample,
      .begins = append.row_start == 0 && rows > 0 && append.revision == 0 && append.restart_nonce == 0};
  AppendRoute route = places_.Route(facts, false);
  if (!route.place) {
    const auto found = Search(append.producer, route.search_for);
    if (!found.ok()) return WithSample(found.status(), append.sample);
    route = places_.Route(facts, true);
  }
  return *route.place;
}

}  // namespace routing_replay::client
