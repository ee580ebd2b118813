#include "client/shard/finder.h"

#include <algorithm>

#include "client/server_limits.h"

namespace routing_replay {

std::optional<size_t> Finder::Search(Producer producer, int64_t handle) {
  const auto found = members_->Locate(run_, producer, {handle}, DeadlineAfter(Clock::Real().Now(), kAskTimeout));
  const size_t natural = members_->names().NaturalOwner(handle);
  std::optional<size_t> place;
  for (size_t member = 0; member < found.size(); ++member) {
    const bool has_it = found[member] && !found[member]->empty();
    if (has_it && (!place || member == natural)) place = member;
  }
  if (place) places_.Remember(producer, handle, *place);
  return place;
}

size_t Finder::FindOrSearch(Producer producer, int64_t handle) {
  if (const auto known = places_.Find(producer, handle)) return *known;
  return Search(producer, handle).value_or(members_->names().NaturalOwner(handle));
}

size_t Finder::PlaceOf(const AppendOptions& append, int64_t rows) {
  const int64_t handle = SampleHandle(append.sample);
  if (const auto known = places_.Find(append.producer, handle)) return *known;
  const bool forks = !append.prefix_sample.empty();
  const bool begins = append.row_start == 0 && rows > 0 && append.revision == 0 && append.restart_nonce == 0;
  const size_t natural = members_->names().NaturalOwner(handle);
  if (!forks && !begins) return Search(append.producer, handle).value_or(natural);
  const size_t place = forks ? FindOrSearch(append.producer, SampleHandle(append.prefix_sample)) : natural;
  places_.Remember(append.producer, handle, place);
  return place;
}

}  // namespace routing_replay
