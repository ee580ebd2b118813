#include "client/shard/finder.h"

#include <algorithm>

#include "client/server_limits.h"

namespace routing_replay {

std::optional<size_t> Finder::Search(Producer producer, int64_t handle) {
  const auto found = members_->Locate(run_, producer, {handle}, DeadlineAfter(Clock::Real().Now(), kAskTimeout));
  std::vector<size_t> having;
  for (size_t member = 0; member < found.size(); ++member) {
    if (found[member] && !found[member]->empty()) having.push_back(member);
  }
  return places_.Learn(producer, handle, having);
}

size_t Finder::PlaceOf(const AppendOptions& append, int64_t rows) {
  const AppendFacts facts{
      .producer = append.producer,
      .sample = append.sample,
      .prefix_sample = append.prefix_sample,
      .begins = append.row_start == 0 && rows > 0 && append.revision == 0 && append.restart_nonce == 0};
  AppendRoute route = places_.Route(facts, false);
  if (!route.place) {
    Search(append.producer, route.search_for);
    route = places_.Route(facts, true);
  }
  return *route.place;
}

}  // namespace routing_replay
